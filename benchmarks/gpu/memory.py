"""Hold the estimates of memory against what this machine's NVIDIA GPU takes.

    python benchmarks/gpu/memory.py [--json OUT] [--seconds 450] [--jobs N] [--dry-run]

Each case runs the engine's own updates in a fresh process, and again with the allocator limited to what a T4 has.
Cases come in order of what they teach until the time is over. `--dry-run` runs tiny cases on the CPU and measures
nothing. Status 2 where there is no GPU.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.gpu import harness
from benchmarks.gpu.cases import Case
from benchmarks.gpu.harness import LEAST_SECONDS, T4

from shoestring.errors import ShoestringError
from shoestring.estimate.memory import memory
from shoestring.hardware.catalog import Device
from shoestring.trace import Tracer

LIMIT_BYTES = T4.memory_bytes - T4.context_bytes[1]
"""What the allocator has on a T4: its memory (14.56 GiB) less a typical context."""

WORTH_LIMITING = 0.4
"""The share of a T4 from which on a case is run again with its memory."""

Measure = Callable[[Case, str, int | None, float], dict[str, Any]]
"""(case, `cuda` or `cpu`, limit of the allocator in bytes, seconds it may take) -> `measure.py`'s answer."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A case, its estimate on this GPU, and what was measured; bytes without the CUDA context except `process`."""

    case: Case
    estimate: dict[str, Any]
    measured: dict[str, Any]
    limited: dict[str, Any] | None = None
    """Whether a T4's memory was said to suffice and whether it did; None where it was not tried."""
    skipped: str = ""

    def json(self) -> dict[str, Any]:
        about = {"id": self.case.id, **self.case.json()}
        if self.skipped:
            return {**about, "skipped": self.skipped}
        measured = {f"measured_{name}": self.measured[name] for name in ("allocated", "reserved", "process")}
        return {**about, **self.estimate, **measured, "limited": self.limited}


def main(arguments: Sequence[str] | None = None, measure: Measure | None = None) -> int:
    parser = harness.parser(__doc__, file="gpu_memory.json", seconds=450)
    jobs = min(4, max(1, (os.cpu_count() or 1) // 3))
    parser.add_argument("--jobs", type=int, default=jobs, help="cases at once")
    options = parser.parse_args(arguments)
    asked = harness.asked(dry_run=options.dry_run)
    if asked is None:
        return 2
    chosen, device, on = asked
    rows = run(chosen, device, on, measure or in_a_process, seconds=options.seconds, jobs=options.jobs)
    harness.write(options.json, device, {"rows": [row.json() for row in rows]})
    print(table(rows))
    return 0


def run(chosen: Sequence[Case], device: Device, on: str, measure: Measure, *, seconds: float, jobs: int) -> list[Row]:
    """The rows of the cases that the time suffices for, several at once: a process's peaks are its own."""
    end = time.monotonic() + seconds

    def one(case: Case) -> Row | None:
        left = end - time.monotonic()
        if left < LEAST_SECONDS and on == "cuda":
            return None
        row = _row(case, device, on, measure, end)
        print(f"{end - time.monotonic():4.0f} s left  {_line(row)}", file=sys.stderr, flush=True)
        return row

    with ThreadPoolExecutor(jobs) as pool:
        return [row for row in pool.map(one, chosen) if row is not None]


def in_a_process(case: Case, on: str, limit_bytes: int | None, seconds: float) -> dict[str, Any]:
    """Ask a fresh `measure.py`."""
    question = {"case": case.json(), "device": on, "limit_bytes": limit_bytes}
    return harness.answered("measure.py", question, seconds)


def table(rows: Sequence[Row]) -> str:
    """Relative errors of the estimates over all rows that were measured."""
    measured = [row for row in rows if not row.skipped and row.measured["reserved"]]
    lines = [harness.HEADER]
    for name in ("allocated", "reserved", "process"):
        errors = [row.estimate[name] / row.measured[name] - 1 for row in measured if row.measured[name]]
        lines.append(harness.figures(name, errors))
    if measured:
        held = sum(row.estimate["low"] <= row.measured["reserved"] <= row.estimate["high"] for row in measured)
        lines.append(f"range holds what was reserved in {held} of {len(measured)}")
    limited = [row.limited for row in rows if row.limited]
    wrong = sum(each["said"] and not each["fits"] for each in limited)
    shy = sum(each["fits"] and not each["said"] for each in limited)
    lines.append(f"with a T4's memory: {len(limited)} tried, {wrong} said to fit that did not, {shy} the other way")
    lines += [f"skipped {row.case.id}: {row.skipped}" for row in rows if row.skipped]
    return "\n".join(lines)


def _row(case: Case, device: Device, on: str, measure: Measure, end: float) -> Row:
    def left() -> float:
        return end - time.monotonic()

    def skipped(why: str) -> Row:
        return Row(case=case, estimate={}, measured={}, skipped=why)

    if case.missing:
        return skipped(f"{case.missing} is not installed")
    try:
        estimate, on_a_t4 = _estimates(case, device)
    except ShoestringError as error:
        return skipped(f"no estimate: {error.message}")
    answer = measure(case, on, None, left())
    if "error" in answer:
        return skipped(answer["error"])
    if not answer["fits"]:
        return skipped("more than this GPU has")
    limited = None
    if (answer["reserved"] or 0) > WORTH_LIMITING * LIMIT_BYTES and left() > LEAST_SECONDS:
        again = measure(case, on, LIMIT_BYTES, left())
        if "error" not in again:
            limited = {"said": on_a_t4, "fits": again["fits"], "reserved": again["reserved"]}
    return Row(case=case, estimate=estimate, measured=answer, limited=limited)


def _estimates(case: Case, device: Device) -> tuple[dict[str, Any], bool]:
    """The estimate for this GPU in bytes, and whether a T4's memory is said to suffice for the same kernels."""
    if device.compute_capability == (9, 0):
        # The workspaces of cuBLAS are set to those of other cards; kernels of attention are chosen alike from 8.0 on.
        device = dataclasses.replace(device, compute_capability=(8, 9))
    with tempfile.TemporaryDirectory() as folder, Tracer(case.loaded(Path(folder))) as tracer:
        trace = tracer.trace(case.settings, accumulate=2, device=device)
    found = memory(trace, device)
    outside = device.context_bytes
    small = dataclasses.replace(device, memory_bytes=T4.memory_bytes, context_bytes=(T4.context_bytes[1],) * 3)
    estimate = {
        "allocated": found.allocated.value,
        "reserved": found.reserved.value,
        "process": found.peak_bytes,
        "low": found.low_bytes - outside[0],
        "high": found.high_bytes - outside[2],
    }
    return estimate, memory(trace, small).fits


def _line(row: Row) -> str:
    if row.skipped:
        return f"{row.case.id}: skipped, {row.skipped}"
    reserved = row.measured["reserved"]
    error = f"{row.estimate['reserved'] / reserved - 1:+.1%}" if reserved else "not measured"
    return f"{row.case.id}: {row.estimate['reserved'] / 2**30:.2f} GiB, {error}"


if __name__ == "__main__":
    raise SystemExit(main())
