"""Train on one GPU with one process, and with two that share it and exchange over gloo, and compare the bits.

    python -m benchmarks.gpu.ranks [--json OUT] [--dry-run]

The commands are real, the two processes are those of torchrun. A third run has two processes, is stopped within an
epoch by a signal to the second one, and continues with one. `--dry-run` trains on the CPU. The exit status is 2 without
a GPU, and 1 if bits differ.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.engine.ranks import CASES, SHARDS, digests, stops, train, write_recipe
from benchmarks.gpu import harness

NAMES = ("BatchNorm and dropout", "temporal lstm", "legal")
SHARDINGS = ("ddp", "zero1")


def measure(name: str, sharding: str, on: str, folder: Path) -> dict[str, Any]:
    """Return the row of a case: the bits of each run, its seconds and the memory of its processes."""
    recipe = write_recipe(name, folder)
    options = {**CASES[name][2], "sharding": sharding, **({"size": "tiny"} if CASES[name][0] else {})}
    alone, shared, moved = (folder / way for way in ("one process", "two processes", "moved"))
    seconds = {alone.name: train(recipe, alone, 1, options, on=on)}
    for run in (shared, moved):
        # No plan can be made for two processes on one GPU. That of one process is exact for two.
        run.mkdir()
        shutil.copy(alone / "plan.json", run)
    seconds[shared.name] = train(recipe, shared, 2, options, on=on, torchrun=True)
    train(recipe, moved, 2, options, 1, 5, on=on, torchrun=True)
    train(recipe, moved, 1, options, on=on)
    bits = {run.name: digests(run) for run in (alone, shared, moved)}
    return {
        "name": name,
        "sharding": sharding,
        "equal": len(set(bits.values())) == 1,
        "bits": bits,
        "seconds": seconds,
        "sessions_of_2_and_1_processes_ended_after_updates": stops(moved),
        "ranks": ranks(shared),
    }


def ranks(run: Path) -> list[dict[str, float]]:
    """Return the last report of each rank: its memory, and its seconds of exchange and of waiting."""
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [event["ranks"] for event in events if event["event"] == "progress" and "ranks" in event][-1]


def main() -> int:
    parser = harness.build_parser(__doc__, file="gpu_ranks.json", seconds=540)
    arguments = parser.parse_args()
    selected = harness.select_cases(dry_run=arguments.dry_run)
    if selected is None:
        return 2
    _, device, kind = selected
    on = "local" if kind == "cuda" else "cpu"
    rows: list[dict[str, Any]] = []
    started = time.monotonic()
    for name in NAMES[: 1 if arguments.dry_run else None]:
        for sharding in SHARDINGS:
            if time.monotonic() - started > arguments.seconds - harness.MIN_CASE_SECONDS:
                print(f"{name:22} {sharding:6} not run: --seconds {arguments.seconds:g}")
                continue
            with tempfile.TemporaryDirectory() as folder:
                row = measure(name, sharding, on, Path(folder))
            rows.append(row)
            seconds = ", ".join(f"{way} {value:.1f} s" for way, value in row["seconds"].items())
            print(f"{name:22} {sharding:6} {'equal' if row['equal'] else 'NOT EQUAL'}  {seconds}", flush=True)
            harness.write_results(arguments.json, device, {"logical_shards": SHARDS, "rows": rows})
    return 0 if all(row["equal"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
