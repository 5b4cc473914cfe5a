"""Hold the estimates of time against updates that were measured on real GPUs.

    python benchmarks/time/score.py lora|train ROWS.csv --json OUT [--configs DIR] [--only ID,ID]

Nothing is measured and nothing is fetched here. OUT is that of the memory scores, in seconds of a step. What a row's
own source measured is left out of its estimate; at the end stands what each source shows, as `estimate/spread.py` has
it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.memory import lora, score
from benchmarks.memory.cases import Case, Row, Rows
from benchmarks.memory.score import Score, percentile
from benchmarks.time import train

from shoestring.errors import UsageError
from shoestring.estimate.time import update_seconds
from shoestring.trace.record import Trace

ARCHIVE = "FitCheck-LLM"
"""Where the LoRA rows are from, which do not say it themselves."""


def measured(row: Row) -> float | None:
    """Seconds of a step; None where they were not taken."""
    text = row.get("seconds_per_step") or ""
    return float(text) if text else None


SETS: Mapping[str, Rows] = {
    "lora": replace(lora.ROWS, measured=measured, judged="seconds"),
    "train": Rows(
        case=train.case,
        measured=measured,
        judged="seconds",
        group=lambda row: f"{row['gpu']} {row['model']} {row['precision'].split()[0]}",
    ),
}


def source(row: Row) -> str:
    """The repository that a row was read from."""
    return (row.get("source") or ARCHIVE).partition("#")[0]


def of_time(row: Row, kind: Rows, case: Case, trace: Trace) -> Score:
    """The seconds of the row's step, from what others measured. Raises UsageError where there is no estimate."""
    found = update_seconds(trace, case.device, 1, gpus=case.gpus, without=source(row))
    if found is None:
        raise UsageError(f"no rate of {case.device.title} is known")
    if source(row) in found.source:
        raise UsageError(f"the estimate is made of what the row's own source measured: {found.source}")
    return Score(row=row, measured=kind.measured(row) or 0.0, estimate=found, group=kind.group(row))


def shown(found: Iterable[Score]) -> Iterator[str]:
    """For each GPU and source the 5th and the 95th percentile of measured over predicted."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for scored in found:
        if not scored.skipped:
            key = (scored.row.get("gpu") or "T4", source(scored.row))
            ratios.setdefault(key, []).append(scored.measured / scored.estimate.value)
    for (gpu, name), each in ratios.items():
        yield f"{gpu}, {name}: {percentile(each, 0.05):.2f} to {percentile(each, 0.95):.2f}, {len(each)} rows"


def main(arguments: Sequence[str] | None = None) -> int:
    found, kind = score.run(arguments, SETS, of_time, __doc__)
    print(score.table(found, kind))
    print("measured over predicted:", *shown(found), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
