"""Compare the estimates of memory with measurements on this machine's NVIDIA GPU.

    python -m benchmarks.gpu.memory [--json OUT] [--seconds 450] [--jobs N] [--dry-run]

Each case runs the engine's updates in a new process, and again with the allocator limited to the memory of a T4. The
most informative cases run first, until the time limit. `--dry-run` runs tiny cases on the CPU and measures nothing. The
exit status is 2 without a GPU.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu import harness
from benchmarks.gpu.cases import Case
from benchmarks.gpu.harness import MIN_CASE_SECONDS, T4

from shoestring.base.errors import ShoestringError
from shoestring.hardware.catalog import Device
from shoestring.planning.estimate.memory import memory
from shoestring.planning.trace import Tracer

LIMIT_BYTES = T4.memory_bytes - T4.context_bytes[1]
"""The limit of the allocator on a T4: its memory (14.56 GiB) minus a typical context."""

MIN_LIMITED_SHARE = 0.4
"""The minimum share of a T4's memory for which a case runs again with that memory."""

Measure = Callable[[Case, str, int | None, float], dict[str, Any]]
"""(case, `cuda` or `cpu`, limit of the allocator in bytes, time limit in seconds) -> answer of `measure.py`."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A case, its estimate for this GPU and the measurement; bytes exclude the CUDA context except in `process`."""

    case: Case
    estimate: dict[str, Any]
    measured: dict[str, Any]
    limited: dict[str, Any] | None = None
    """Whether the case was estimated to fit a T4 and whether it did; None if that was not measured."""
    skipped: str = ""

    def json(self) -> dict[str, Any]:
        description = {"id": self.case.id, **self.case.json()}
        if self.skipped:
            return {**description, "skipped": self.skipped}
        measured = {f"measured_{name}": self.measured[name] for name in ("allocated", "reserved", "process")}
        return {**description, **self.estimate, **measured, "limited": self.limited}


def main(arguments: Sequence[str] | None = None, measure: Measure | None = None) -> int:
    parser = harness.build_parser(__doc__, file="gpu_memory.json", seconds=450)
    parser.add_argument("--jobs", type=int, help="number of cases that run in parallel; by default 1 on a small GPU")
    options = parser.parse_args(arguments)
    selection = harness.select_cases(dry_run=options.dry_run)
    if selection is None:
        return 2
    cases, device, torch_device = selection
    rows: list[Row] = []

    def add(row: Row) -> None:
        rows.append(row)
        harness.write_results(options.json, device, {"rows": [row.json() for row in rows]})

    harness.write_results(options.json, device, {"rows": []})
    jobs = options.jobs or _default_jobs(device)
    run(cases, device, torch_device, measure or measure_in_process, add, seconds=options.seconds, jobs=jobs)
    print(table(rows))
    return 0


def _default_jobs(device: Device) -> int:
    """Return how many cases run in parallel: those of a large GPU, with three cores for each."""
    if device.memory_bytes < harness.LARGE_MEMORY_BYTES:
        return 1
    return min(6, max(1, (os.cpu_count() or 1) // 3))


def run(
    cases: Sequence[Case],
    device: Device,
    torch_device: str,
    measure: Measure,
    add: Callable[[Row], None],
    *,
    seconds: float,
    jobs: int,
) -> None:
    """Measure the cases within the time limit, several in parallel: peaks are measured per process.

    `add` is called with each row.
    """
    end = time.monotonic() + seconds
    lock = threading.Lock()

    def measure_row(case: Case) -> None:
        seconds_left = end - time.monotonic()
        if seconds_left < MIN_CASE_SECONDS and torch_device == "cuda":
            return
        row = _measure_row(case, device, torch_device, measure, end)
        print(f"{end - time.monotonic():4.0f} s left  {_format_row(row)}", file=sys.stderr, flush=True)
        with lock:
            add(row)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(measure_row, cases))


def measure_in_process(case: Case, torch_device: str, limit_bytes: int | None, seconds: float) -> dict[str, Any]:
    """Run `measure.py` in a new process."""
    question = {"case": case.json(), "device": torch_device, "limit_bytes": limit_bytes}
    return harness.run_module("measure", question, seconds)


def table(rows: Sequence[Row]) -> str:
    """Format the relative errors of the estimates over all measured rows."""
    measured = [row for row in rows if not row.skipped and row.measured["reserved"]]
    lines = [harness.HEADER]
    for name in ("allocated", "reserved", "process"):
        errors = [row.estimate[name] / row.measured[name] - 1 for row in measured if row.measured[name]]
        lines.append(harness.format_errors(name, errors))
    if measured:
        in_range = sum(row.estimate["low"] <= row.measured["reserved"] <= row.estimate["high"] for row in measured)
        lines.append(f"the range contains the reserved memory in {in_range} of {len(measured)} cases")
    limited = [row.limited for row in rows if row.limited]
    false_fits = sum(result["said"] and not result["fits"] for result in limited)
    missed_fits = sum(result["fits"] and not result["said"] for result in limited)
    lines.append(
        f"with the memory of a T4: {len(limited)} measured, {false_fits} estimated to fit but did not, "
        f"{missed_fits} fit but were not estimated to"
    )
    lines += [f"skipped {row.case.id}: {row.skipped}" for row in rows if row.skipped]
    return "\n".join(lines)


def _measure_row(case: Case, device: Device, torch_device: str, measure: Measure, end: float) -> Row:
    def seconds_left() -> float:
        return end - time.monotonic()

    def skipped_row(reason: str) -> Row:
        return Row(case=case, estimate={}, measured={}, skipped=reason)

    if case.missing:
        return skipped_row(f"{case.missing} is not installed")
    try:
        estimate, fits_a_t4 = _estimates(case, device)
    except ShoestringError as error:
        return skipped_row(f"no estimate: {error.message}")
    answer = measure(case, torch_device, None, seconds_left())
    if "error" in answer:
        return skipped_row(answer["error"])
    if not answer["fits"]:
        return skipped_row("more memory than this GPU has")
    limited = None
    if (answer["reserved"] or 0) > MIN_LIMITED_SHARE * LIMIT_BYTES and seconds_left() > MIN_CASE_SECONDS:
        limited_answer = measure(case, torch_device, LIMIT_BYTES, seconds_left())
        if "error" not in limited_answer:
            limited = {
                "said": fits_a_t4,
                "fits": limited_answer["fits"],
                "reserved": limited_answer["reserved"],
            }
    return Row(case=case, estimate=estimate, measured=answer, limited=limited)


def _estimates(case: Case, device: Device) -> tuple[dict[str, Any], bool]:
    """Return the estimate for this GPU in bytes, and whether the same kernels are estimated to fit a T4's memory."""
    with tempfile.TemporaryDirectory() as folder, Tracer(case.load(Path(folder))) as tracer:
        trace = tracer.trace(case.settings, accumulate=2, device=device)
    breakdown = memory(trace, device)
    context = device.context_bytes
    t4_like = dataclasses.replace(device, memory_bytes=T4.memory_bytes, context_bytes=(T4.context_bytes[1],) * 3)
    estimate = {
        "allocated": breakdown.allocated.value,
        "reserved": breakdown.reserved.value,
        "process": breakdown.peak_bytes,
        "low": breakdown.low_bytes - context[0],
        "high": breakdown.high_bytes - context[2],
    }
    return estimate, memory(trace, t4_like).fits


def _format_row(row: Row) -> str:
    if row.skipped:
        return f"{row.case.id}: skipped, {row.skipped}"
    reserved = row.measured["reserved"]
    error = f"{row.estimate['reserved'] / reserved - 1:+.1%}" if reserved else "not measured"
    return f"{row.case.id}: {row.estimate['reserved'] / 2**30:.2f} GiB, {error}"


if __name__ == "__main__":
    raise SystemExit(main())
