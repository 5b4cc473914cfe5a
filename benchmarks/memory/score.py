"""Hold the estimates of memory against what was measured: one table, ours beside the other estimators'.

    python benchmarks/memory/score.py xmem|lora ROWS.csv --json OUT [--configs DIR]

Nothing is measured and nothing is fetched here. OUT has for each row the bytes measured and estimated with the range,
or why it was skipped.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.memory import t4, xmem

from shoestring.errors import ShoestringError
from shoestring.estimate import memory
from shoestring.hardware.catalog import DEVICES, Device
from shoestring.recipe import live
from shoestring.settings import Settings
from shoestring.trace.record import Trace
from shoestring.trace.tracer import Tracer

CONFIGS = Path(__file__).parents[3] / "shared" / "data" / "configs"

_TOTAL_BYTES = {"RTX 3060 12GB": 12_622_168_064}
"""As the records' notes give it; where they do not, the catalogue's figure."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """One row: bytes measured and estimated, without the CUDA context; or why there is no estimate."""

    row: Mapping[str, str]
    estimate: int = 0
    low: int = 0
    high: int = 0
    fits: bool = False
    skipped: str = ""

    @property
    def measured(self) -> int:
        return int(self.row["measured_bytes"])

    @property
    def fitted(self) -> bool:
        """Whether the measured run did; one that did not was measured where it died."""
        return self.row["oom"] != "1"

    def json(self) -> dict[str, Any]:
        if self.skipped:
            return {"id": self.row["id"], "skipped": self.skipped}
        return {
            "id": self.row["id"],
            "measured": self.measured,
            "estimate": self.estimate,
            "low": self.low,
            "high": self.high,
        }


def score(rows: Iterable[Mapping[str, str]], configs: Path) -> list[Score]:
    """Every row's score, in order; rows of one recipe share the process that follows it."""
    scores: dict[str, Score] = {}
    groups: dict[tuple[str, ...], list[Mapping[str, str]]] = {}
    for row in rows:
        scores[row["id"]] = Score(row=row)
        groups.setdefault(tuple(row[name] for name in ("model", "optimizer", "zero_grad")), []).append(row)
    for group in groups.values():
        scores |= {scored.row["id"]: scored for scored in _score_group(group, configs)}
    return list(scores.values())


def device(gpu: str) -> Device:
    """The catalogue's entry for the name of a GPU in the records."""
    found = DEVICES[xmem.DEVICES[gpu]]
    return dataclasses.replace(found, memory_bytes=_TOTAL_BYTES.get(gpu, found.memory_bytes))


def table(scores: Sequence[Score]) -> str:
    """Of each family and of all: relative errors of the rows that fitted, and how often `fits` was wrong."""
    lines = [f"{'rows':<14}{'':<12}{'n':>4}{'median':>9}{'p90':>8}{'worst':>8}{'under':>8}{'wrong fit':>11}"]
    families = dict.fromkeys(scored.row["family"] for scored in scores)
    for family in [*families, "all"]:
        group = [scored for scored in scores if not scored.skipped and family in (scored.row["family"], "all")]
        for name in ("shoestring", "xmem", "dnnmem", "schedtune", "llmem"):
            said = [(scored, bytes_) for scored in group if (bytes_ := _said(scored, name)) is not None]
            lines.append(f"{family:<14}{name:<12}" + _figures(said, name))
    ours = [scored for scored in scores if not scored.skipped and scored.fitted]
    if ours:
        held = sum(scored.low <= scored.measured <= scored.high for scored in ours) / len(ours)
        under = sum(scored.measured <= scored.high for scored in ours) / len(ours)
        excess = median(scored.high / scored.measured - 1 for scored in ours)
        lines.append(f"range: holds {held:.0%}, high end holds {under:.0%} and is {excess:+.1%} off at the median")
    return "\n".join(lines)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * share // 1) - 1)]


def _figures(said: Sequence[tuple[Score, int]], name: str) -> str:
    errors = [bytes_ / scored.measured - 1 for scored, bytes_ in said if scored.fitted]
    if not errors:
        return f"{0:>4}"
    sizes = [abs(error) for error in errors]
    under = sum(error < 0 for error in errors) / len(errors)
    fits = [scored for scored, bytes_ in said if (scored.fits if name == "shoestring" else _below(scored, bytes_))]
    wrong = sum(not scored.fitted for scored in fits) / len(fits) if fits else 0.0
    shares = (f"{value:>8.1%}" for value in (median(sizes), percentile(sizes, 0.9), max(sizes), under))
    return f"{len(errors):>4} {''.join(shares)}{wrong:>11.1%}"


def _said(scored: Score, name: str) -> int | None:
    if name == "shoestring":
        return scored.estimate
    written = scored.row.get(f"{name}_bytes")
    return int(written) if written else None


def _below(scored: Score, bytes_: int) -> bool:
    return bytes_ <= device(scored.row["gpu"]).memory_bytes


def _score_group(group: Sequence[Mapping[str, str]], configs: Path) -> list[Score]:
    try:
        with Tracer(live(xmem.run(group[0], configs))) as tracer:
            return [_score_row(row, tracer) for row in group]
    except ShoestringError as error:
        return [Score(row=row, skipped=_words(error)) for row in group]


def _score_row(row: Mapping[str, str], tracer: Tracer) -> Score:
    if row["gpu"] not in xmem.DEVICES:
        return Score(row=row, skipped=f"no GPU {row['gpu']} is known")
    on = device(row["gpu"])
    try:
        trace = tracer.trace(Settings(micro_batch=int(row["batch_size"]), precision="fp32"), accumulate=1, device=on)
    except ShoestringError as error:
        return Score(row=row, skipped=_words(error))
    return _scored(row, trace, on)


def _scored(row: Mapping[str, str], trace: Trace, on: Device) -> Score:
    breakdown = memory(trace, on)
    context_low, _, context_high = on.context_bytes
    reserved = breakdown.reserved_peak_bytes
    return Score(
        row=row,
        estimate=reserved,
        low=breakdown.low_bytes - context_low,
        high=max(reserved, breakdown.high_bytes - context_high),
        fits=breakdown.fits,
    )


def _words(error: ShoestringError) -> str:
    return "; ".join([error.message, *error.problems, *([error.hint] if error.hint else [])])


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["lora"]:
        return t4.main(arguments)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("set", choices=["xmem"])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--configs", type=Path, default=CONFIGS)
    parser.add_argument("--json", type=Path, required=True)
    chosen = parser.parse_args(arguments)
    with chosen.rows.open(newline="", encoding="utf-8") as file:
        scores = score(csv.DictReader(file), chosen.configs)
    chosen.json.write_text(json.dumps({"rows": [scored.json() for scored in scores]}, indent=1) + "\n", "utf-8")
    print(table(scores))
    for scored in scores:
        if scored.skipped:
            print(f"skipped {scored.row['id']}: {scored.skipped}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
