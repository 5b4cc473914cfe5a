"""Compare the estimates of time with updates that others measured on real GPUs.

    python benchmarks/time/score.py lora|train|cards ROWS.csv --json OUT [--configs DIR] [--only ID,ID]

This script measures and downloads nothing. OUT has the form of the memory scores, in seconds per step. The estimate of
a row excludes the measurements of its own source: in OUT each row has its `source`, and in `range_from` the sources
whose measurements made its range. The last lines are the spreads by source for `planning/estimate/spread.py`.
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
from benchmarks.memory.score import Score
from benchmarks.percentiles import percentile
from benchmarks.time import cards, train

from shoestring.base.errors import UsageError
from shoestring.planning.estimate.time import update_seconds
from shoestring.planning.trace.record import Trace

ARCHIVE = "FitCheck-LLM"
"""The source of the LoRA rows, which do not name it."""


def measured(row: Row) -> float | None:
    """Return the seconds of a step, or None if they were not measured."""
    text = row.get("seconds_per_step") or ""
    return float(text) if text else None


SETS: Mapping[str, Rows] = {
    "lora": replace(lora.ROWS, measured=measured, quantity="seconds"),
    "train": Rows(
        case=train.case,
        measured=measured,
        quantity="seconds",
        group=lambda row: f"{row['gpu']} {row['model']} {row['precision'].split()[0]}",
    ),
    "cards": cards.ROWS,
}


def source(row: Row) -> str:
    """Return the repository of a row."""
    return (row.get("source") or ARCHIVE).partition("#")[0].partition("@")[0]


def score_time(row: Row, kind: Rows, case: Case, trace: Trace) -> Score:
    """Score the estimated seconds of a row. Raises UsageError if there is no estimate."""
    sharding = case.settings.sharding or "ddp"
    estimate = update_seconds(
        trace,
        case.device,
        1,
        gpus=case.gpus,
        sharding=sharding,
        torch_ddp=sharding == "ddp",
        without=source(row),
        cudnn_benchmark=case.settings.cudnn_benchmark,
        tf32=case.settings.tf32,
    )
    if estimate is None:
        raise UsageError(f"the rates of {case.device.title} are unknown")
    if source(row) in estimate.source:
        raise UsageError(f"the estimate is based on measurements of the row's own source: {estimate.source}")
    return Score(
        row=row,
        measured=kind.measured(row) or 0.0,
        estimate=estimate,
        group=kind.group(row),
        details={"source": source(row), "range_from": estimate.range_names},
    )


def row_lines(scores: Iterable[Score]) -> Iterator[str]:
    """Yield for each row the predicted and the measured seconds, their ratio and whether the range has the latter."""
    for row_score in scores:
        if row_score.skipped:
            yield f"{row_score.row['id']}: {row_score.skipped}"
            continue
        estimate, measured_seconds = row_score.estimate, row_score.measured
        inside = "yes" if estimate.low <= measured_seconds <= estimate.high else "no"
        yield (
            f"{row_score.row['id']}: predicted {estimate.value:.3f} s ({estimate.low:.3f} to {estimate.high:.3f}), "
            f"measured {measured_seconds:.3f} s, ratio {estimate.value / measured_seconds:.2f}, in range: {inside}"
        )


def spread_lines(scores: Iterable[Score]) -> Iterator[str]:
    """Yield for each GPU and source the 5th and the 95th percentile of measured over predicted."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for row_score in scores:
        if not row_score.skipped:
            key = (row_score.row.get("gpu") or "T4", source(row_score.row))
            ratios.setdefault(key, []).append(row_score.measured / row_score.estimate.value)
    for (gpu, name), values in ratios.items():
        yield f"{gpu}, {name}: {percentile(values, 0.05):.2f} to {percentile(values, 0.95):.2f}, {len(values)} rows"


def main(arguments: Sequence[str] | None = None) -> int:
    scores, kind = score.run(arguments, SETS, score_time, __doc__)
    print(*row_lines(scores), sep="\n")
    print(score.table(scores, kind))
    print("measured over predicted:", *spread_lines(scores), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
