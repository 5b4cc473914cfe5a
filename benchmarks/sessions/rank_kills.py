"""Kill the processes of runs on several ranks, continue, and compare the bits with those of undisturbed runs.

    python -m benchmarks.sessions.rank_kills [--kills 200] [--minutes 30] [--json OUT]

The commands are real, on gloo processes of one thread. A kill is a SIGKILL of a random rank, of the process that a
person started, of the agent, or of all of them, at a random moment. The answers are added to OUT after each run, so
that the command can be repeated until it has made all kills.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

RESULTS = Path(__file__).parents[1] / "results"
MODES = (("ddp", 2), ("zero1", 2), ("ddp", 4), ("zero2", 2), ("zero3", 2))
"""Sharding and the number of ranks."""
VICTIMS = ("rank", "person's process", "agent", "all")
KILLS_OF_A_RUN = 6

RECIPE = '''
import time
import torch
from torch import nn


class Slow:
    """A small network with dropout and updates of some milliseconds."""

    epochs, effective_batch = 6, 16

    def model(self):
        return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))

    def batch(self, size):
        return torch.zeros(size, 6)

    def loss(self, model, batch):
        time.sleep(0.03)
        return (model(batch) - batch.sum(dim=1, keepdim=True)).square().mean()

    def data(self):
        points = torch.randn(340, 6, generator=torch.Generator().manual_seed(0))
        return {"train": points[20:], "validation": points[:20]}
'''


@contextmanager
def training(recipe: Path, run: Path, sharding: str, ranks: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start the command, and end it with all that it has started."""
    settings = {"gpus": ranks, "logical_shards": 4, "sharding": sharding, "save_every_updates": 7}
    arguments = [argument for name, value in settings.items() for argument in ("--set", f"{name}={value}")]
    with run.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "shoestring", "train", str(recipe), "--on", "cpu", "--run", str(run), *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def processes(command: subprocess.Popen[bytes]) -> dict[str, list[psutil.Process]]:
    """Return the processes of a run by what they are."""
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(command.pid)
        children = parent.children(recursive=True)
        ranks = [child for child in children if _is_rank(child)]
        agents = [child for child in children if child.ppid() == parent.pid]
        return {"rank": ranks, "person's process": [parent], "agent": agents, "all": [parent, *children]}
    return {victim: [] for victim in VICTIMS}


def _is_rank(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return "shoestring.runs.train.rank" in process.cmdline()
    return False


def digests(run: Path) -> list[str]:
    newest = max((run / "checkpoints").glob("update-*"))
    files = sorted(newest.glob("*.safetensors"))
    return [newest.name, *(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files)]


def disturbed(recipe: Path, run: Path, sharding: str, ranks: int, chance: random.Random) -> Counter[str]:
    """Train to the end with some kills, and return them."""
    kills: Counter[str] = Counter()
    while True:
        with training(recipe, run, sharding, ranks) as command:
            while command.poll() is None and kills.total() < KILLS_OF_A_RUN:
                time.sleep(chance.uniform(0.5, 9.0))
                victim = chance.choice(VICTIMS)
                targets = processes(command)[victim]
                if victim == "rank" and targets:
                    targets = [chance.choice(targets)]
                for target in targets:
                    with suppress(psutil.NoSuchProcess):
                        target.kill()
                kills[victim] += bool(targets)
                if victim != "rank":
                    break
            if command.wait(300) == 0 and json.loads((run / "state.json").read_text())["status"] == "finished":
                return kills


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill the processes of runs on several ranks.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--modes", nargs="+", default=[f"{sharding}-{ranks}" for sharding, ranks in MODES])
    parser.add_argument("--json", type=Path, default=RESULTS / "rank_kills.json")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(arguments.json.read_text()) if arguments.json.exists() else []
    stop_at = time.monotonic() + arguments.minutes * 60
    modes = [(sharding, int(ranks)) for sharding, _, ranks in (mode.partition("-") for mode in arguments.modes)]
    references: dict[tuple[str, int], list[str]] = {}
    while sum(row["kills"] for row in rows) < arguments.kills and time.monotonic() < stop_at:
        sharding, ranks = modes[len(rows) % len(modes)]
        seed = len(rows)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            recipe = folder / "slow.py"
            recipe.write_text(RECIPE)
            if (sharding, ranks) not in references:
                with training(recipe, folder / "whole", sharding, ranks) as command:
                    assert command.wait(300) == 0, (folder / "whole.log").read_text()[-2000:]
                references[sharding, ranks] = digests(folder / "whole")
            kills = disturbed(recipe, folder / "disturbed", sharding, ranks, random.Random(seed))
            is_equal = digests(folder / "disturbed") == references[sharding, ranks]
        rows.append(
            {"sharding": sharding, "ranks": ranks, "seed": seed, "kills": kills.total(), **kills, "equal": is_equal}
        )
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
        print(rows[-1], f"{sum(row['kills'] for row in rows)} kills", flush=True)
    unequal = [row for row in rows if not row["equal"]]
    print(f"{len(rows)} runs, {sum(row['kills'] for row in rows)} kills, {len(unequal)} runs with other bits")


if __name__ == "__main__":
    main()
