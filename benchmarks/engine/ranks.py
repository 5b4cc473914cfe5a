"""Train recipes on 1, 2 and 4 processes, and in sessions of 2, 1, 4 and 2 processes, and compare the bits.

    python -m benchmarks.engine.ranks [--only NAME ...] [--json OUT]

Every session is the real command at size=tiny, with four logical shards, on gloo processes of one thread. What is
compared are the SHA-256 digests of the last checkpoint's weights and optimizer states. A session that is to be stopped
sends SIGTERM to one of its ranks within an epoch.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "temporal lstm": ("shoestring_recipes.temporal", "Temporal", {"architecture": "lstm", "epochs": 3}),
    "temporal transformer": ("shoestring_recipes.temporal", "Temporal", {"architecture": "transformer", "epochs": 3}),
    "temporal mlp": ("shoestring_recipes.temporal", "Temporal", {"architecture": "mlp", "epochs": 3}),
    "legal": ("shoestring_recipes.legal", "Legal", {"epochs": 2}),
    "vqa": ("shoestring_recipes.vqa", "VQA", {"epochs": 2, "max_updates": 8}),
    "cloud": ("shoestring_recipes.cloud", "Cloud", {"epochs": 2, "max_updates": 8, "effective_batch": 8}),
    "BatchNorm and dropout": ("", "", {}),
}
"""The module and the class of each recipe, and its options."""

BATCH_NORM = '''
import torch
from torch import nn

class Base:
    """A network with BatchNorm and dropout."""
    epochs, effective_batch, learning_rate, clip_norm = 4, 24, 0.05, 0.5

    def model(self):
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(144, 3)
        )

    def batch(self, size):
        return torch.zeros(size, 1, 8, 8), torch.zeros(size, dtype=torch.int64)

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def data(self):
        images = torch.randn(130, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        whole = torch.utils.data.TensorDataset(images, (images.mean(dim=(1, 2, 3)) * 20).long().clamp(-1, 1) + 1)
        return {"train": torch.utils.data.Subset(whole, range(110)), "validation": whole}
'''
STOPPING = '''
import os, signal

class Recipe(Base):
    """Asks its process to stop when it has computed some losses."""
    losses = 0

    def loss(self, model, batch, **stage):
        if model.training:
            Recipe.losses += 1
            is_asked = os.environ.get("RANK", "0") == os.environ["STOPPED"]
            if is_asked and Recipe.losses == int(os.environ["STOP_AT"]):
                os.kill(os.getpid(), signal.SIGTERM)
        return super().loss(model, batch, **stage)
'''
SESSIONS = ((2, 1, 3), (1, 0, 10), (4, 3, 2), (2, 0, 0))
"""(processes, the rank that is asked to stop, its number of losses before that) of the run that moves."""
SHARDS = 4


def write_recipe(name: str, folder: Path) -> Path:
    """Write a recipe file for the case."""
    module, kind, _ = CASES[name]
    file = folder / "stopping.py"
    (folder / "network.py").write_text(BATCH_NORM)
    file.write_text(f"from {module or 'network'} import {kind or 'Base'} as Base\n{STOPPING}")
    return file


def train(
    recipe: Path,
    run: Path,
    processes: int,
    options: dict[str, Any],
    stopped: int = 0,
    at: int = 0,
    *,
    on: str = "cpu",
    torchrun: bool = False,
) -> float:
    """Run one session, whose processes `torchrun` or the command itself starts, and return its seconds."""
    values = {**options, "gpus": processes, "logical_shards": SHARDS}
    settings = [argument for name, value in values.items() for argument in ("--set", f"{name}={value}")]
    launcher = ["torch.distributed.run", "--nproc-per-node", str(processes), "-m", "--"] if torchrun else []
    started = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-m", *launcher, "shoestring", "train", str(recipe), "--on", on, "--run", str(run), *settings],
        env={**os.environ, "OMP_NUM_THREADS": "1", "STOPPED": str(stopped), "STOP_AT": str(at)},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise SystemExit(result.stderr[-3000:])
    return time.monotonic() - started


def digests(run: Path) -> tuple[str, ...]:
    """Return the digests of the weights and of the optimizer in the newest checkpoint."""
    newest = max((run / "checkpoints").glob("update-*"))
    files = ("model.safetensors", "optimizer.safetensors")
    return newest.name, *(hashlib.sha256((newest / file).read_bytes()).hexdigest() for file in files)


def stops(run: Path) -> list[int]:
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [event["update"] for event in events if event["event"] == "stop"]


def compare(name: str, sharding: str, folder: Path) -> dict[str, Any]:
    """Return the row of a case: the bits of every way to run it."""
    recipe = write_recipe(name, folder)
    options = {**CASES[name][2], "sharding": sharding, **({"size": "tiny"} if CASES[name][0] else {})}
    seconds = {count: train(recipe, folder / str(count), count, options) for count in (1, 2, 4)}
    for processes, stopped, at in SESSIONS:
        train(recipe, folder / "moved", processes, options, stopped, at)
    bits = {way: digests(folder / str(way)) for way in (1, 2, 4, "moved")}
    return {
        "name": name,
        "sharding": sharding,
        "equal": len(set(bits.values())) == 1,
        "checkpoint": bits[1][0],
        "weights_sha256": bits[1][1],
        "optimizer_sha256": bits[1][2],
        "sessions_of_2_1_4_2_processes_ended_after_updates": stops(folder / "moved"),
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the bits of different numbers of processes.")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--zero1", nargs="*", choices=list(CASES), default=["temporal lstm", "BatchNorm and dropout"])
    parser.add_argument("--json", type=Path, default=RESULTS / "ranks.json")
    arguments = parser.parse_args()
    rows = []
    for sharding, names in (("ddp", arguments.only), ("zero1", arguments.zero1)):
        for name in filter(arguments.only.__contains__, names):
            with tempfile.TemporaryDirectory() as folder:
                row = compare(name, sharding, Path(folder))
            rows.append(row)
            print(
                f"{name:22} {sharding:6} {'equal' if row['equal'] else 'NOT EQUAL'}  {row['checkpoint']}  weights "
                f"{row['weights_sha256'][:12]}  optimizer {row['optimizer_sha256'][:12]}  sessions ended after "
                f"{row['sessions_of_2_1_4_2_processes_ended_after_updates']}",
                flush=True,
            )
    arguments.json.write_text(json.dumps({"logical_shards": SHARDS, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
