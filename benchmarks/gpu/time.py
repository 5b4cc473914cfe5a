"""Hold the estimates of time against what this machine's NVIDIA GPU takes.

    python benchmarks/gpu/time.py [--json OUT] [--seconds 480] [--dry-run]

Kernels are timed first, which gives the GPU's line of `estimate/rates.py`; then each case runs the engine's own updates
in a fresh process, one after the other, in order of what they teach until the time is over. `--dry-run` runs tiny cases
on the CPU, whose times say nothing. Status 2 where there is no GPU.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

if __package__ in (None, ""):
    sys.path.remove(str(Path(__file__).parent))  # where this file would be the standard library's `time`
    sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.gpu import harness
from benchmarks.gpu.cases import Case
from benchmarks.gpu.harness import LEAST_SECONDS

from shoestring.errors import ShoestringError
from shoestring.estimate.time import Seconds, update_seconds
from shoestring.hardware.catalog import Device
from shoestring.trace import Tracer

MICROBATCHES = 2
"""Of each update."""

Measure = Callable[[Case | None, str, float], dict[str, Any]]
"""(case or the kernels, `cuda` or `cpu`, seconds it may take) -> `clock.py`'s answer."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A case, its estimate on this GPU, and the median of its measured updates, in seconds."""

    case: Case
    estimate: Seconds | None = None
    measured: float = 0.0
    spread: tuple[float, float] = (0.0, 0.0)
    """The fastest and the slowest update."""
    skipped: str = ""

    @property
    def error(self) -> float:
        assert self.estimate
        return self.estimate.value / self.measured - 1

    def json(self) -> dict[str, Any]:
        about = {"id": self.case.id, **self.case.json()}
        if self.skipped or not self.estimate:
            return {**about, "skipped": self.skipped}
        said = {"estimate": self.estimate.value, "low": self.estimate.low, "high": self.estimate.high}
        parts = dict(self.estimate.parts)
        return {**about, **said, "parts": parts, "measured": self.measured, "measured_spread": self.spread}


def main(arguments: Sequence[str] | None = None, measure: Measure | None = None) -> int:
    options = harness.parser(__doc__, file="gpu_time.json", seconds=480).parse_args(arguments)
    asked = harness.asked(dry_run=options.dry_run)
    if asked is None:
        return 2
    chosen, device, on = asked
    ask = measure or in_a_process
    end = time.monotonic() + options.seconds
    kernels = ask(None, on, options.seconds)
    rows = run(chosen, device, on, ask, end)
    harness.write(options.json, device, {"kernels": kernels, "rows": [row.json() for row in rows]})
    print(table(rows))
    return 0


def run(chosen: Sequence[Case], device: Device, on: str, measure: Measure, end: float) -> list[Row]:
    """The rows of the cases that the time until `end` suffices for; one at a time, for they share the GPU's clock."""
    rows = []
    for case in chosen:
        left = end - time.monotonic()
        if left < LEAST_SECONDS and on == "cuda":
            break
        rows.append(_row(case, device, on, measure, left))
        row = rows[-1]
        said = f"skipped, {row.skipped}" if row.skipped else f"{row.measured * 1e3:.1f} ms, {row.error:+.1%}"
        print(f"{end - time.monotonic():4.0f} s left  {case.id}: {said}", file=sys.stderr, flush=True)
    return rows


def in_a_process(case: Case | None, on: str, seconds: float) -> dict[str, Any]:
    """Ask a fresh `clock.py`."""
    return harness.answered("clock.py", {"case": case.json() if case else None, "device": on}, seconds)


def table(rows: Sequence[Row]) -> str:
    """Relative errors of the estimates over all rows that were measured, by precision."""
    measured = [row for row in rows if not row.skipped]
    lines = [harness.HEADER]
    for name in dict.fromkeys([*(str(row.case.settings.precision) for row in measured), "all"]):
        errors = [row.error for row in measured if name in (str(row.case.settings.precision), "all")]
        lines.append(harness.figures(name, errors))
    if measured:
        held = sum(row.estimate.low <= row.measured <= row.estimate.high for row in measured if row.estimate)
        lines.append(f"range holds what was measured in {held} of {len(measured)}")
    lines += [f"skipped {row.case.id}: {row.skipped}" for row in rows if row.skipped]
    return "\n".join(lines)


def _row(case: Case, device: Device, on: str, measure: Measure, seconds: float) -> Row:
    if case.missing:
        return Row(case=case, skipped=f"{case.missing} is not installed")
    try:
        estimate = _estimate(case, device)
    except ShoestringError as error:
        return Row(case=case, skipped=f"no estimate: {error.message}")
    if estimate is None:
        return Row(case=case, skipped="no estimate: the rates of this GPU are not known")
    answer = measure(case, on, seconds)
    if "error" in answer:
        return Row(case=case, skipped=answer["error"])
    if not answer["fits"]:
        return Row(case=case, skipped="more than this GPU has")
    each = sorted(answer["seconds"])
    return Row(case=case, estimate=estimate, measured=median(each), spread=(each[0], each[-1]))


def _estimate(case: Case, device: Device) -> Seconds | None:
    with tempfile.TemporaryDirectory() as folder, Tracer(case.loaded(Path(folder))) as tracer:
        trace = tracer.trace(case.settings, accumulate=MICROBATCHES, device=device)
    return update_seconds(trace, device, MICROBATCHES)


if __name__ == "__main__":
    raise SystemExit(main())
