"""Compare predicted memory with what PyTorch's allocator takes on a simulated GPU, for each configuration.

    python -m benchmarks.lab.memory.predictions [--rows FOLDER] [--json OUT] [--side SIDE] [--only WORD ...]

Each answer is appended to a file in FOLDER when it is known, and what is there is not computed again; `--side` computes
the answers of one side only. OUT has the scores of all configurations with both answers; with `--only` it keeps its
other rows.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.lab.memory import command
from benchmarks.lab.memory.configurations import MODELS, RECIPES, Configuration, configurations
from benchmarks.lab.memory.processes import Answers, Side, started
from benchmarks.lab.memory.scores import Score, describe, score

MEMORY_BYTES = 64 * 2**30
"""Of each simulated GPU: more than any configuration needs, so that no limit changes what is reserved."""

SIDES: tuple[Side, ...] = ("measuring", "estimating")

RESULTS = Path(__file__).parents[2] / "results" / "lab-memory.json"


def by_recipe(items: Sequence[Configuration]) -> list[Configuration]:
    """Return the configurations with those of the same recipe one after the other, which share a tracing process."""
    keys = {item.id: (item.model, json.dumps(dict(item.options))) for item in items}
    models = [*MODELS, *RECIPES]
    return sorted(items, key=lambda item: (models.index(item.model), keys[item.id]))


def read(file: Path) -> dict[str, dict[str, Any]]:
    """Return the answers in a file by the configurations' ids."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {row["id"]: row["answer"] for row in map(json.loads, lines)}


def collect(items: Sequence[Configuration], folder: Path, sides: Sequence[Side]) -> Iterator[Score]:
    """Compute the answers that the files in `folder` lack, and yield the score of each configuration with both."""
    files = {side: folder / f"{side}.jsonl" for side in SIDES}
    answers = {side: read(file) for side, file in files.items()}
    with ExitStack() as stack:
        processes: dict[tuple[Side, str], Answers] = {}
        for item in items:
            for side in sides:
                if item.id in answers[side]:
                    continue
                on = item.on if side == "measuring" else "any"
                if (side, on) not in processes:
                    process = started(side, on=item.on, memory_bytes=MEMORY_BYTES, log=folder / f"{side}.log")
                    processes[side, on] = stack.enter_context(process)
                began = time.monotonic()
                answer = processes[side, on].ask(item)
                answers[side][item.id] = {**answer, "seconds": round(time.monotonic() - began, 2)}
                with files[side].open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"id": item.id, "answer": answers[side][item.id]}) + "\n")
            if all(item.id in known for known in answers.values()):
                yield score(item, answers["measuring"][item.id], answers["estimating"][item.id])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__, RESULTS)
    parser.add_argument("--side", choices=SIDES)
    options = parser.parse_args(arguments)
    items = command.chosen(configurations(), options)
    scores = []
    for item in collect(by_recipe(items), command.rows_folder(options), [options.side] if options.side else SIDES):
        scores.append(item)
        print(f"{len(scores)}/{len(items)} {item.describe()}", file=sys.stderr, flush=True)
    if options.side:  # the other one's answers may be missing
        return 0
    print(describe(scores))
    write(scores, options.json, keeps_others=bool(options.only))
    return 0


def write(scores: Sequence[Score], file: Path, *, keeps_others: bool) -> None:
    """Write the scores in the order of the configurations, with the other rows of the file or without them."""
    rows = {row["id"]: row for row in json.loads(file.read_text(encoding="utf-8"))["rows"]} if keeps_others else {}
    rows |= {item.id: item.json() for item in scores}
    order = [item.id for item in configurations()]
    in_order = sorted(rows.values(), key=lambda row: order.index(row["id"]))
    file.write_text(json.dumps({"rows": in_order}, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
