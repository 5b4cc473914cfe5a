"""Hold the estimates of memory against what was measured: one table, ours beside the other estimators'.

    python benchmarks/memory/score.py xmem|lora|train ROWS.csv --json OUT [--configs DIR] [--only ID,ID]

Nothing is measured and nothing is fetched here. OUT has for each row the bytes measured and estimated with the range,
or why it was skipped. xMem's rows are judged as reserved memory, the others as allocated, with reserved told apart.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Protocol

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.memory import lora, train, xmem
from benchmarks.memory.cases import Case, Row, Rows, number

from shoestring.errors import ShoestringError
from shoestring.estimate.memory import Range, memory
from shoestring.recipe.finding import find
from shoestring.trace.record import Trace
from shoestring.trace.tracer import Tracer

CONFIGS = Path(__file__).parents[3] / "shared" / "data" / "configs"

SETS: Mapping[str, Rows] = {"xmem": xmem.ROWS, "lora": lora.ROWS, "train": train.ROWS}

NOTHING = Range(0, 0, 0)


class Estimate(Protocol):
    """A number with its ends: a range of bytes, or seconds."""

    @property
    def low(self) -> float: ...
    @property
    def value(self) -> float: ...
    @property
    def high(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Score:
    """One row: bytes (without the CUDA context) or seconds measured and estimated; or why there is no estimate."""

    row: Row
    measured: float = 0
    estimate: Estimate = NOTHING
    reserved: int = 0
    """The estimate of reserved memory, where the row is judged by another."""
    fits: bool = False
    fitted: bool = True
    group: str = ""
    capacity: int = 0
    skipped: str = ""

    @property
    def error(self) -> float:
        """Above (positive) or below what was measured, relative to it."""
        return self.estimate.value / self.measured - 1

    def json(self) -> dict[str, Any]:
        if self.skipped:
            return {"id": self.row["id"], "skipped": self.skipped}
        answer = {
            "id": self.row["id"],
            "measured": self.measured,
            "estimate": self.estimate.value,
            "low": self.estimate.low,
            "high": self.estimate.high,
        }
        if self.reserved:
            answer["reserved"] = {"measured": number(self.row, "reserved_bytes"), "estimate": self.reserved}
        return answer


Judge = Callable[[Row, Rows, Case, Trace], Score]
"""What is estimated from a row's trace, held against what the row measured."""


def of_memory(row: Row, kind: Rows, case: Case, trace: Trace) -> Score:
    """The bytes of the row's run."""
    found = memory(trace, case.device, gpus=case.gpus)
    return Score(
        row=row,
        measured=kind.measured(row) or 0,
        estimate=getattr(found, kind.judged),
        reserved=0 if kind.judged == "reserved" else found.reserved.value,
        fits=found.fits,
        fitted=kind.fitted(row),
        group=kind.group(row),
        capacity=case.device.memory_bytes,
    )


def scores(rows: Iterable[Row], kind: Rows, configs: Path, judge: Judge = of_memory) -> Iterator[Score]:
    """Every row's score; rows of one recipe follow each other and share the process that follows it."""
    groups: dict[tuple[object, ...], list[tuple[Row, Case]]] = {}
    for row in rows:
        if kind.measured(row) is None:
            yield Score(row=row, skipped="nothing was measured")
            continue
        try:
            case = kind.case(row, configs)
        except ShoestringError as error:
            yield Score(row=row, skipped=_words(error))
            continue
        groups.setdefault(case.same, []).append((row, case))
    for group in groups.values():
        yield from _of_one_recipe(group, kind, judge)


def table(found: Sequence[Score], kind: Rows) -> str:
    """Of each group and of all: relative errors of the rows that fitted, and how often `fits` was wrong."""
    known = [scored for scored in found if not scored.skipped]
    width = max([10, *(len(scored.group) for scored in known)]) + 2
    lines = [f"{'rows':<{width}}{'':<12}{'n':>4}{'median':>9}{'p90':>9}{'worst':>9}{'under':>8}{'wrong fit':>11}"]
    # Nothing fits into time, or everything does.
    cut = -11 if kind.judged == "seconds" else None
    lines[0] = lines[0][:cut]
    for name in dict.fromkeys([*(scored.group for scored in known), "all"]):
        group = [scored for scored in known if name in (scored.group, "all")]
        lines.append(f"{name:<{width}}{'shoestring':<12}" + _figures(group)[:cut])
        for rival in kind.rivals:
            lines.append(f"{name:<{width}}{rival:<12}" + _figures(list(_of_rival(group, rival))))
    ours = [scored for scored in known if scored.fitted]
    if ours:
        held = sum(scored.estimate.low <= scored.measured <= scored.estimate.high for scored in ours) / len(ours)
        under = sum(scored.measured <= scored.estimate.high for scored in ours) / len(ours)
        excess = median(scored.estimate.high / scored.measured - 1 for scored in ours)
        lines.append(f"range: holds {held:.0%}, high end holds {under:.1%} and is {excess:+.1%} off at the median")
    pairs = [(scored.reserved, number(scored.row, "reserved_bytes")) for scored in ours if scored.reserved]
    if errors := [estimate / measured - 1 for estimate, measured in pairs if measured]:
        lines.append(
            f"reserved: median {median(map(abs, errors)):.1%}, from {min(errors):+.1%} to {max(errors):+.1%}, "
            f"{len(errors)} rows"
        )
    return "\n".join(lines)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * share // 1) - 1)]


def _figures(said: Sequence[Score]) -> str:
    errors = [scored.error for scored in said if scored.fitted]
    if not errors:
        return f"{0:>4}"
    sizes = [abs(error) for error in errors]
    under = sum(error < 0 for error in errors) / len(errors)
    fits = [scored for scored in said if scored.fits]
    wrong = sum(not scored.fitted for scored in fits) / len(fits) if fits else 0.0
    shares = (f"{value:>9.2%}" for value in (median(sizes), percentile(sizes, 0.9), max(sizes)))
    return f"{len(errors):>4}{''.join(shares)}{under:>8.0%}{wrong:>11.1%}"


def _of_rival(group: Sequence[Score], name: str) -> Iterator[Score]:
    """What another estimator said of the same rows; it said `fits` where that lies below the device's memory."""
    for scored in group:
        said = number(scored.row, f"{name}_bytes")
        if said is not None:
            yield replace(scored, estimate=Range(said, said, said), fits=said <= scored.capacity)


def _of_one_recipe(group: Sequence[tuple[Row, Case]], kind: Rows, judge: Judge) -> Iterator[Score]:
    try:
        tracer = Tracer(find(group[0][1].recipe()))
    except ShoestringError as error:
        yield from (Score(row=row, skipped=_words(error)) for row, _ in group)
        return
    with tracer:
        for row, case in group:
            try:
                trace = tracer.trace(case.settings, accumulate=1, device=case.device, gpus=case.gpus)
                yield judge(row, kind, case, trace)
            except ShoestringError as error:
                yield Score(row=row, skipped=_words(error))


def _words(error: ShoestringError) -> str:
    return "; ".join([error.message, *error.problems, *([error.hint] if error.hint else [])])


def main(arguments: Sequence[str] | None = None) -> int:
    ordered, kind = run(arguments, SETS, of_memory, __doc__)
    print(table(ordered, kind))
    return 0


def run(
    arguments: Sequence[str] | None, sets: Mapping[str, Rows], judge: Judge, about: str | None
) -> tuple[list[Score], Rows]:
    """Read the command line and the rows, score them, write the file of scores; they come back in the rows' order."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=list(sets))
    parser.add_argument("rows", type=Path)
    parser.add_argument("--configs", type=Path, default=CONFIGS)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--only", help="ids with commas between")
    asked = parser.parse_args(arguments)
    _import_once()
    kind = sets[asked.set]
    with asked.rows.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if not asked.only or row["id"] in asked.only.split(",")]
    found = {}
    for scored in scores(rows, kind, asked.configs, judge):
        found[scored.row["id"]] = scored
        said = f"skipped, {scored.skipped}" if scored.skipped else f"{scored.error:+.2%}"
        print(f"{len(found)}/{len(rows)} {scored.row['id']}: {said}", file=sys.stderr)
    ordered = [found[row["id"]] for row in rows]
    asked.json.write_text(json.dumps({"rows": [scored.json() for scored in ordered]}, indent=1) + "\n", "utf-8")
    return ordered, kind


def _import_once() -> None:
    """Here, so that the process of each recipe has them already; what is not there is missed by its rows alone."""
    try:
        import peft
        import transformers
    except ImportError:
        return
    assert peft
    transformers.logging.set_verbosity_error()


if __name__ == "__main__":
    sys.exit(main())
