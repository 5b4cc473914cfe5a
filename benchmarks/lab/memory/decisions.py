"""Try out on a simulated GPU whether what a plan says fits, fits, and whether the next larger microbatch does not.

    python -m benchmarks.lab.memory.decisions [--rows FOLDER] [--json OUT] [--only WORD ...]

The GPU has its own memory and its context, so what does not fit ends in an out-of-memory error of PyTorch's allocator.
Training fits if it does so with each length of the very first microbatch that a plan reckons with: a shorter one leaves
blocks that later ones do not fit, and a run cannot choose it.

A step is from a microbatch to the next larger one that the search would consider for the effective batch
(`EFFECTIVE_BATCH` in `deciding.py`): those that divide it as equally as possible (`micro_batches` in
`planning/micro_batch.py`). For 1,024 samples 41 and 43, 94 and 103, or 256 and 342 are a step apart.
Each answer is appended to a file in FOLDER when it is known, and what is there is not computed again.
"""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.lab.memory import command
from benchmarks.lab.memory.configurations import Configuration, of_decisions
from benchmarks.lab.memory.predictions import read
from benchmarks.lab.memory.processes import Answers, Side, started

from shoestring.base.settings import Settings
from shoestring.hardware.targets import find as find_target

RESULTS = Path(__file__).parents[2] / "results" / "lab-decisions.json"


def decide(items: Sequence[Configuration], folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the row of each configuration: what is planned, and what became of it on the simulated GPU."""
    file = folder / "decisions.jsonl"
    rows, predictor = read(file), _version()
    with ExitStack() as stack:
        processes: dict[tuple[Side, str], Answers] = {}

        def ask(side: Side, item: Configuration) -> dict[str, Any]:
            if (side, item.on) not in processes:
                memory_bytes = find_target(item.on).device.memory_bytes
                process = started(side, on=item.on, memory_bytes=memory_bytes, log=folder / f"{side}.log")
                processes[side, item.on] = stack.enter_context(process)
            return processes[side, item.on].ask(item)

        for item in items:
            if item.id not in rows:
                planned = ask("deciding", item)
                runs = {} if "error" in planned else runs_of(item, planned, lambda other: ask("measuring", other))
                rows[item.id] = {**planned, "runs": runs, "predictor": predictor}
                with file.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps({"id": item.id, "answer": rows[item.id]}) + "\n")
            yield {"id": item.id, "kind": item.kind, **rows[item.id]}


def _version() -> str:
    """Return the commit of the sources that predict, with `-dirty` if they were changed since."""
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=RESULTS.parent, capture_output=True, text=True, check=False).stdout.strip()


def runs_of(item: Configuration, planned: Mapping[str, Any], measure: Any) -> dict[str, Any]:
    """Return what became of the largest microbatch that fits, of larger ones until one does not, and of the plan."""

    def run(settings: Settings) -> dict[str, Any]:
        answers = []
        for share in planned["first_shares"]:
            answer: dict[str, Any] = measure(dataclasses.replace(item, settings=settings, first_share=share))
            if "error" in answer:
                return {"error": answer["error"]}
            answers.append({"first_share": share} | {name: answer[name] for name in _SHOWN})
            if not answer["fits"]:
                break
        return {"fits": answers[-1]["fits"], "by_first_share": answers}

    fixed = Settings.from_json(planned["fixed"])
    runs = {}
    for size in (planned["largest"], *planned["next"]):
        if size:
            runs[str(size)] = run(fixed.replace(micro_batch=size))
            if size != planned["largest"] and not runs[str(size)].get("fits", True):
                break
    if planned["verdict"] == "fits":
        settings = Settings.from_json(planned["plan"])
        is_largest = settings.replace(packing="no") == fixed.replace(micro_batch=planned["largest"])
        runs["plan"] = runs[str(planned["largest"])] if is_largest else run(settings)
    return runs


_SHOWN = ("fits", "allocated", "reserved", "retries")


def outcome(row: Mapping[str, Any]) -> str:
    """Return how right the decisions of a row are: `exact`, `one step off`, or what is wrong."""
    if "error" in row:
        return f"not planned: {row['error']}"
    runs = row["runs"]
    if failures := [f"{name}: {run['error']}" for name, run in runs.items() if "error" in run]:
        return f"not run: {failures[0]}"
    if "plan" in runs and not runs["plan"]["fits"]:
        return "the plan ran out of memory"
    if row["largest"] and not runs[str(row["largest"])]["fits"]:
        return "the largest that fits ran out of memory"
    fitting = [size for size in row["next"] if runs.get(str(size), {}).get("fits")]
    if not row["next"]:
        return "every microbatch fits"
    return ("exact", "one step off", "two steps off", "more steps off")[len(fitting)]


def main(arguments: Sequence[str] | None = None) -> int:
    options = command.parser(__doc__, RESULTS).parse_args(arguments)
    items = command.chosen(of_decisions(), options)
    rows = []
    for row in decide(items, command.rows_folder(options)):
        rows.append({**row, "outcome": outcome(row)})
        steps = [row.get("largest"), *row.get("next", ())]
        print(f"{len(rows)}/{len(items)} {row['id']}: {steps} {rows[-1]['outcome']}", file=sys.stderr, flush=True)
    if not options.only:
        options.json.write_text(json.dumps({"target": "kaggle-t4", "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
