"""Compare the estimates of memory with measurements: one table, with the errors of other estimators.

    python benchmarks/memory/score.py xmem|lora|train ROWS.csv --json OUT [--configs DIR] [--only ID,ID]

This script measures and downloads nothing. For each row, OUT contains the measured and estimated bytes with the range,
or the reason why it was skipped. The rows of xMem are compared as reserved memory, the others as allocated memory; the
reserved memory and the memory of the process, where a row has them, are compared in tables of their own.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Protocol

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.memory import lora, train, xmem
from benchmarks.memory.cases import Case, Row, Rows, number
from benchmarks.percentiles import percentile

from shoestring.base.errors import ShoestringError
from shoestring.planning.estimate.memory import Breakdown, Range, memory
from shoestring.planning.trace.record import Trace
from shoestring.planning.trace.tracer import Tracer
from shoestring.recipe.finding import find

CONFIGS = Path(__file__).parents[3] / "shared" / "data" / "configs"

SETS: Mapping[str, Rows] = {"xmem": xmem.ROWS, "lora": lora.ROWS, "train": train.ROWS}

NOTHING = Range(0, 0, 0)

OTHER_QUANTITIES = {"reserved": "reserved_bytes", "process": "process_bytes"}
"""Quantities that are compared in addition to that of the set, and their columns. A process has the reserved memory and
the CUDA context."""


class Estimate(Protocol):
    """An estimate with its range, in bytes or seconds."""

    @property
    def low(self) -> float: ...
    @property
    def value(self) -> float: ...
    @property
    def high(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A measured quantity and its estimate, in bytes."""

    measured: float
    estimate: Estimate

    def json(self) -> dict[str, float]:
        return {
            "measured": self.measured,
            "estimate": self.estimate.value,
            "low": self.estimate.low,
            "high": self.estimate.high,
        }


@dataclass(frozen=True, kw_only=True)
class Score:
    """The score of a row: measured and estimated bytes (without the CUDA context) or seconds, or a skip reason."""

    row: Row
    measured: float = 0
    estimate: Estimate = NOTHING
    others: Mapping[str, Comparison] = field(default_factory=dict)
    """The quantities of `OTHER_QUANTITIES` that were measured."""
    rivals: Mapping[str, float] = field(default_factory=dict)
    """The estimates of other programs, which were published with the measurements."""
    fits: bool = False
    fitted: bool = True
    group: str = ""
    capacity: int = 0
    skipped: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further properties of the estimate for the file of scores."""

    @property
    def error(self) -> float:
        """The relative error, positive for overestimates."""
        return self.estimate.value / self.measured - 1

    def json(self) -> dict[str, Any]:
        if self.skipped:
            return {"id": self.row["id"], "skipped": self.skipped}
        comparison = Comparison(measured=self.measured, estimate=self.estimate)
        others = {name: other.json() for name, other in self.others.items()}
        fits = {"fits": self.fits, "capacity": self.capacity, "rivals": dict(self.rivals)} if self.rivals else {}
        row = {"id": self.row["id"], "group": self.group, "fitted": self.fitted}
        return {**row, **comparison.json(), **others, **fits, **self.details}


Scorer = Callable[[Row, Rows, Case, Trace], Score]
"""Compares the estimate from a row's trace with the row's measurement."""


def score_memory(row: Row, kind: Rows, case: Case, trace: Trace) -> Score:
    """Score the estimated bytes of a row."""
    # Other people trained without reproducible bits.
    breakdown = memory(trace, case.device, gpus=case.gpus, deterministic=False)
    return Score(
        row=row,
        measured=kind.measured(row) or 0,
        estimate=getattr(breakdown, kind.quantity),
        others=_compare_others(row, kind, breakdown),
        rivals={name: value for name in kind.rivals if (value := number(row, f"{name}_bytes")) is not None},
        fits=breakdown.fits,
        fitted=kind.fitted(row),
        group=kind.group(row),
        capacity=case.device.memory_bytes,
    )


def _compare_others(row: Row, kind: Rows, breakdown: Breakdown) -> dict[str, Comparison]:
    process = Range(breakdown.low_bytes, breakdown.peak_bytes, breakdown.high_bytes)
    estimates = {"reserved": breakdown.reserved, "process": process}
    measured = {name: number(row, column) for name, column in OTHER_QUANTITIES.items() if name != kind.quantity}
    return {name: Comparison(measured=value, estimate=estimates[name]) for name, value in measured.items() if value}


def score_rows(rows: Iterable[Row], kind: Rows, configs: Path, scorer: Scorer = score_memory) -> Iterator[Score]:
    """Yield the score of every row; rows of one recipe are consecutive and share a tracing process."""
    groups: dict[tuple[object, ...], list[tuple[Row, Case]]] = {}
    for row in rows:
        if kind.measured(row) is None:
            yield Score(row=row, skipped="nothing was measured")
            continue
        try:
            case = kind.case(row, configs)
        except ShoestringError as error:
            yield Score(row=row, skipped=_error_text(error))
            continue
        groups.setdefault(case.same, []).append((row, case))
    for group in groups.values():
        yield from _score_group(group, kind, scorer)


def table(scores: Sequence[Score], kind: Rows) -> str:
    """Format the relative errors of fitting rows and the share of wrong `fits`, by group and in total.

    A table for each of the other quantities that were measured follows.
    """
    estimated = [score for score in scores if not score.skipped]
    # Time estimates have no column "wrong fit".
    lines = list(_table_lines(estimated, "rows", kind.rivals, None if kind.quantity != "seconds" else -_LAST_COLUMN))
    for name in OTHER_QUANTITIES:
        of_quantity = [
            replace(score, measured=score.others[name].measured, estimate=score.others[name].estimate)
            for score in estimated
            if name in score.others
        ]
        if of_quantity:
            lines += ["", *_table_lines(of_quantity, name, (), -_LAST_COLUMN)]
    return "\n".join(lines)


def _table_lines(scores: Sequence[Score], title: str, rivals: Sequence[str], end: int | None) -> Iterator[str]:
    """Yield the lines of a table; each line ends at the character `end`."""
    if not scores:
        yield "no row has an estimate"
        return
    width = max([10, *(len(score.group) for score in scores)]) + 2
    columns = f"{'n':>4}{'median':>9}{'p90':>9}{'worst':>9}{'under':>8}{'high holds':>12}{'wrong fit':>{_LAST_COLUMN}}"
    yield f"{title:<{width}}{'':<12}{columns[:end]}"
    for name in dict.fromkeys([*(score.group for score in scores), "all"]):
        group = [score for score in scores if name in (score.group, "all")]
        yield f"{name:<{width}}{'shoestring':<12}{_format_errors(group)[:end]}"
        for rival in rivals:
            yield f"{name:<{width}}{rival:<12}{_format_errors(list(_rival_scores(group, rival)))[:end]}"
    fitting = [score for score in scores if score.fitted]
    if fitting:
        in_range = sum(score.estimate.low <= score.measured <= score.estimate.high for score in fitting) / len(fitting)
        excess = median(score.estimate.high / score.measured - 1 for score in fitting)
        yield f"range: contains {in_range:.0%}; high end: above {_share_held(fitting):.1%}, median excess {excess:+.1%}"


_LAST_COLUMN = 11
"""The width of the column "wrong fit"."""


def _format_errors(scores: Sequence[Score]) -> str:
    errors = [score.error for score in scores if score.fitted]
    if not errors:
        return f"{0:>4}"
    sizes = [abs(error) for error in errors]
    under = sum(error < 0 for error in errors) / len(errors)
    fits = [score for score in scores if score.fits]
    wrong = sum(not score.fitted for score in fits) / len(fits) if fits else 0.0
    shares = (f"{value:>9.2%}" for value in (median(sizes), percentile(sizes, 0.9), max(sizes)))
    held = _share_held([score for score in scores if score.fitted])
    return f"{len(errors):>4}{''.join(shares)}{under:>8.0%}{held:>12.1%}{wrong:>{_LAST_COLUMN}.1%}"


def _share_held(scores: Sequence[Score]) -> float:
    """Return the share of rows whose measurement is at most the high end of the range."""
    return sum(score.measured <= score.estimate.high for score in scores) / len(scores)


def _rival_scores(group: Sequence[Score], name: str) -> Iterator[Score]:
    """Yield the scores of another estimator; its `fits` means an estimate up to the device's memory."""
    for score in group:
        if (estimate := score.rivals.get(name)) is not None:
            yield replace(score, estimate=Range(estimate, estimate, estimate), fits=estimate <= score.capacity)


def _score_group(group: Sequence[tuple[Row, Case]], kind: Rows, scorer: Scorer) -> Iterator[Score]:
    try:
        tracer = Tracer(find(group[0][1].recipe()))
    except ShoestringError as error:
        yield from (Score(row=row, skipped=_error_text(error)) for row, _ in group)
        return
    with tracer:
        for row, case in group:
            try:
                trace = tracer.trace(
                    case.settings,
                    accumulate=1,
                    device=case.device,
                    gpus=case.gpus,
                    torch_ddp=case.settings.sharding != "zero3",
                    loading=case.loading,
                )
                yield scorer(row, kind, case, trace)
            except ShoestringError as error:
                yield Score(row=row, skipped=_error_text(error))


def _error_text(error: ShoestringError) -> str:
    return "; ".join([error.message, *error.problems, *([error.hint] if error.hint else [])])


def main(arguments: Sequence[str] | None = None) -> int:
    scores, kind = run(arguments, SETS, score_memory, __doc__)
    print(table(scores, kind))
    return 0


def run(
    arguments: Sequence[str] | None, sets: Mapping[str, Rows], scorer: Scorer, description: str | None
) -> tuple[list[Score], Rows]:
    """Parse the command line, score the rows, write the file of scores, and return them in the order of the rows."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=list(sets))
    parser.add_argument("rows", type=Path)
    parser.add_argument("--configs", type=Path, default=CONFIGS)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--only", help="comma-separated ids")
    options = parser.parse_args(arguments)
    import_once()
    kind = sets[options.set]
    with options.rows.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if not options.only or row["id"] in options.only.split(",")]
    scores_by_id = {}
    for score in score_rows(rows, kind, options.configs, scorer):
        scores_by_id[score.row["id"]] = score
        result = f"skipped, {score.skipped}" if score.skipped else f"{score.error:+.2%}"
        print(f"{len(scores_by_id)}/{len(rows)} {score.row['id']}: {result}", file=sys.stderr)
    ordered = [scores_by_id[row["id"]] for row in rows]
    options.json.write_text(json.dumps({"rows": [score.json() for score in ordered]}, indent=1) + "\n", "utf-8")
    return ordered, kind


def import_once() -> None:
    """Import slow libraries before the tracing processes are forked; if one is missing, only its rows fail."""
    try:
        import peft
        import transformers
    except ImportError:
        return
    assert peft
    transformers.logging.set_verbosity_error()


if __name__ == "__main__":
    sys.exit(main())
