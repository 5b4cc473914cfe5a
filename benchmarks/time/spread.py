"""Print the ratios of measured to predicted seconds for `SCORED` in `src/shoestring/planning/estimate/spread.py`.

    python benchmarks/time/spread.py LORA_ROWS.csv TRAIN_ROWS.csv [--configs DIR] [--without MODEL,MODEL]

Each row is predicted without the measurements of its own source. Models of `--without` are left out: those whose error
has a known cause that is not in the estimate yet.
"""

from __future__ import annotations

import argparse
import csv
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.memory import score
from benchmarks.memory.cases import Case, Row, Rows
from benchmarks.memory.score import Score
from benchmarks.time.score import SETS, score_time, source

from shoestring.planning.estimate.spread import Ratios, held_out_coverage
from shoestring.planning.trace.record import Trace


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("lora", type=Path)
    parser.add_argument("train", type=Path)
    parser.add_argument("--configs", type=Path, default=score.CONFIGS)
    parser.add_argument("--without", default="", help="comma-separated models")
    options = parser.parse_args(arguments)
    score.import_once()
    ratios: dict[str, dict[str, list[float]]] = {}

    def collect(row: Row, kind: Rows, case: Case, trace: Trace) -> Score:
        result = score_time(row, kind, case, trace)
        values = ratios.setdefault(case.device.name, {}).setdefault(source(row), [])
        values.append(result.measured / result.estimate.value)
        return result

    for name, path in (("lora", options.lora), ("train", options.train)):
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["model"] not in options.without.split(",")]
        for row_score in score.score_rows(rows, SETS[name], options.configs, collect):
            print(row_score.row["id"], row_score.skipped or f"{row_score.error:+.2%}", file=sys.stderr)
    for device, sources in ratios.items():
        print(f'    "{device}": {{')
        for name, values in sources.items():
            text = ", ".join(f"{value:.2f}" for value in sorted(values))
            print(
                f'        "{name}": (',
                textwrap.indent(textwrap.fill(f"{text},", 108), 12 * " "),
                "        ),",
                sep="\n",
            )
        print("    },")
        table: dict[str, Ratios] = {name: tuple(values) for name, values in sources.items()}
        coverage = held_out_coverage(table)
        print(f"# held of a source left out: {'unknown' if coverage is None else f'{coverage:.1%}'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
