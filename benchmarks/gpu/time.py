"""Compare the estimates of time with measurements on this machine's NVIDIA GPU.

    python -m benchmarks.gpu.time [--json OUT] [--seconds 480] [--kernels 110] [--dry-run]

Each case runs the engine's updates in a new process, one after the other, the most informative first, until the time
limit less that for the kernels. These are timed by the code of `shoestring check --measure`: `kernels.rates` of the
results is the content of such a file. There are two estimates of each case: by the rates of the catalog, and by those
measured. `--dry-run` runs tiny cases on the CPU, whose times are meaningless. The exit status is 2 without a GPU.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu import harness
from benchmarks.gpu.cases import Case
from benchmarks.gpu.harness import MIN_CASE_SECONDS

from shoestring.base.errors import ShoestringError
from shoestring.hardware import targets
from shoestring.hardware.catalog import Device
from shoestring.planning.estimate.time import Seconds, update_seconds
from shoestring.planning.trace import Tracer
from shoestring.planning.trace.record import Trace
from shoestring.runs.check.rates.grid import GPU

_KERNEL_SHARE = 2
"""The measurement of kernels takes up to so many times its seconds: every operator is timed at least twice."""

_START_SECONDS = 30
"""At most, of a process before it measures."""

MICROBATCHES = 2
"""Per update."""

Measure = Callable[[Case | None, str, float], dict[str, Any]]
"""(case or None for the kernels, `cuda` or `cpu`, time limit in seconds) -> answer of `clock.py`."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A case, its estimate for this GPU, and the median of its measured updates, in seconds."""

    case: Case
    estimate: Seconds | None = None
    trace: Trace | None = field(default=None, repr=False)
    by_rates: Seconds | None = None
    """The estimate by the measured rates of kernels."""
    measured: float = 0.0
    spread: tuple[float, float] = (0.0, 0.0)
    """The fastest and the slowest update."""
    skipped: str = ""

    @property
    def error(self) -> float:
        assert self.estimate
        return self.estimate.value / self.measured - 1

    def json(self) -> dict[str, Any]:
        description = {"id": self.case.id, **self.case.json()}
        if self.skipped or not self.estimate:
            return {**description, "skipped": self.skipped}
        estimate = {"estimate": self.estimate.value, "low": self.estimate.low, "high": self.estimate.high}
        parts = dict(self.estimate.parts)
        by_rates = self.by_rates and {
            "estimate": self.by_rates.value,
            "low": self.by_rates.low,
            "high": self.by_rates.high,
        }
        measured = {"measured": self.measured, "measured_spread": self.spread}
        return {**description, **estimate, "parts": parts, "by_measured_rates": by_rates, **measured}


def main(arguments: Sequence[str] | None = None, measure: Measure | None = None) -> int:
    parser = harness.build_parser(__doc__, file="gpu_time.json", seconds=480)
    parser.add_argument("--kernels", type=float, default=GPU.seconds, help="seconds of the measurement of kernels")
    options = parser.parse_args(arguments)
    selection = harness.select_cases(dry_run=options.dry_run)
    if selection is None:
        return 2
    cases, device, torch_device = selection
    measure = measure or measure_in_process
    end = time.monotonic() + options.seconds - _KERNEL_SHARE * options.kernels
    rows: list[Row] = []
    kernels: dict[str, Any] = {}

    def write() -> None:
        harness.write_results(options.json, device, {"kernels": kernels, "rows": [row.json() for row in rows]})

    write()
    for row in run(cases, device, torch_device, measure, end):
        rows.append(row)
        write()
    kernels = measure(None, torch_device, options.kernels)
    for measured in _measured_device(kernels):
        rows = [
            replace(row, by_rates=update_seconds(row.trace, measured, MICROBATCHES)) if row.trace else row
            for row in rows
        ]
    write()
    print(table(rows))
    return 0


def _measured_device(kernels: Mapping[str, Any]) -> list[Device]:
    """Return the device with the rates of its kernels, or [] if they were not measured or are not plausible."""
    if "rates" not in kernels or not kernels["rates"]:
        return []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rates.json"
        file.write_text(json.dumps(kernels["rates"]), encoding="utf-8")
        try:
            return [targets.find(str(file)).device]
        except ShoestringError as error:
            print(f"the measured rates are not used: {error.message}: {error.problems[:3]}", file=sys.stderr)
            return []


def run(cases: Sequence[Case], device: Device, torch_device: str, measure: Measure, end: float) -> Iterator[Row]:
    """Measure the cases until the time `end`, one at a time, because parallel cases would slow each other down."""
    for case in cases:
        seconds_left = end - time.monotonic()
        if seconds_left < MIN_CASE_SECONDS and torch_device == "cuda":
            return
        row = _measure_row(case, device, torch_device, measure, seconds_left)
        result = f"skipped, {row.skipped}" if row.skipped else f"{row.measured * 1e3:.1f} ms, {row.error:+.1%}"
        print(f"{end - time.monotonic():4.0f} s left  {case.id}: {result}", file=sys.stderr, flush=True)
        yield row


def measure_in_process(case: Case | None, torch_device: str, seconds: float) -> dict[str, Any]:
    """Run `clock.py` in a new process; for the kernels, `seconds` is how long they are measured at most."""
    question = {"case": case.json() if case else None, "device": torch_device, "seconds": seconds}
    return harness.run_module("clock", question, seconds if case else _KERNEL_SHARE * seconds + _START_SECONDS)


def table(rows: Sequence[Row]) -> str:
    """Format the relative errors of the estimates over all measured rows, by precision."""
    measured = [row for row in rows if not row.skipped]
    lines = [harness.HEADER]
    for name in dict.fromkeys([*(str(row.case.settings.precision) for row in measured), "all"]):
        errors = [row.error for row in measured if name in (str(row.case.settings.precision), "all")]
        lines.append(harness.format_errors(name, errors))
    by_rates = [row.by_rates.value / row.measured - 1 for row in measured if row.by_rates]
    if by_rates:
        lines.append(harness.format_errors("by rates", by_rates))
    if measured:
        in_range = sum(row.estimate.low <= row.measured <= row.estimate.high for row in measured if row.estimate)
        lines.append(f"the range contains the measured time in {in_range} of {len(measured)} cases")
    lines += [f"skipped {row.case.id}: {row.skipped}" for row in rows if row.skipped]
    return "\n".join(lines)


def _measure_row(case: Case, device: Device, torch_device: str, measure: Measure, seconds: float) -> Row:
    if case.missing:
        return Row(case=case, skipped=f"{case.missing} is not installed")
    try:
        trace, estimate = _estimate(case, device)
    except ShoestringError as error:
        return Row(case=case, skipped=f"no estimate: {error.message}")
    if estimate is None:
        return Row(case=case, skipped="no estimate: the rates of this GPU are unknown")
    answer = measure(case, torch_device, seconds)
    if "error" in answer:
        return Row(case=case, skipped=answer["error"])
    if not answer["fits"]:
        return Row(case=case, skipped="more memory than this GPU has")
    seconds_list = sorted(answer["seconds"])
    spread = (seconds_list[0], seconds_list[-1])
    return Row(case=case, estimate=estimate, trace=trace, measured=median(seconds_list), spread=spread)


def _estimate(case: Case, device: Device) -> tuple[Trace, Seconds | None]:
    with tempfile.TemporaryDirectory() as folder, Tracer(case.load(Path(folder))) as tracer:
        trace = tracer.trace(case.settings, accumulate=MICROBATCHES, device=device)
    return trace, update_seconds(trace, device, MICROBATCHES)


if __name__ == "__main__":
    raise SystemExit(main())
