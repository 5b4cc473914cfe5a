"""Run out of memory on one of two ranks, once in a run, in each phase of an update and for each sharding.

    python -m benchmarks.sessions.rank_memory [--json OUT]

The commands are real, on gloo processes of one thread. With ddp and zero1 the bits are compared with those of one
process that runs out of memory in the same phase of the same update. With zero2 and zero3, whose sums are rounded in
other places than those of one process, the weights are compared with those of a run that is not disturbed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.sessions.rank_kills import RESULTS, digests
from safetensors.torch import load_file

SHARDINGS = ("ddp", "zero1", "zero2", "zero3")
PHASES = ("forward", "backward", "step", "evaluation")
FAILING_UPDATE = 27
TRAIN = (sys.executable, "-m", "shoestring", "train")

RECIPE = '''
import os
import time
from pathlib import Path
import torch
from torch import nn


class Failing:
    """A small network with dropout, whose process with the rank $RANK_OF_FAILURE runs out of memory once."""

    epochs, effective_batch = 3, 16

    def __init__(self):
        self.calls = 0

    def fail(self, phase):
        marker = Path(os.environ["MARKER"])
        if phase != os.environ.get("PHASE") or os.environ.get("RANK", "0") != os.environ["RANK_OF_FAILURE"]:
            return
        self.calls += 1
        if self.calls == int(os.environ["CALL"]) and not marker.exists():
            marker.touch()
            raise torch.OutOfMemoryError(f"CUDA out of memory in {phase}")

    def model(self):
        return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))

    def blocks(self, model):
        return [model[0], model[3]]

    def batch(self, size):
        return torch.zeros(size, 6)

    def loss(self, model, batch):
        time.sleep(0.03)  # so that a checkpoint is written before the next one is due
        loss = (model(batch) - batch.sum(dim=1, keepdim=True)).square().mean()
        # The loss of a microbatch is compared with that of its halves before the first update, without gradients.
        if loss.requires_grad:
            self.fail("forward")
            loss.register_hook(lambda _: self.fail("backward"))
        elif not model.training:
            self.fail("evaluation")
        return loss

    def optimizer(self, model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        step = optimizer.step

        def failing_step(*arguments):
            result = step(*arguments)
            self.fail("step")
            return result

        optimizer.step = failing_step
        return optimizer

    def data(self):
        points = torch.randn(340, 6, generator=torch.Generator().manual_seed(0))
        return {"train": points[20:], "validation": points[:20]}
'''


def train(folder: Path, name: str, ranks: int, sharding: str, phase: str = "", call: int = 0) -> float:
    """Train in `folder / name` to the end, and return the seconds of the command."""
    settings = {"gpus": ranks, "logical_shards": 2, "sharding": sharding, "micro_batch": 8, "save_every_updates": 10}
    settings["save_every_seconds"] = 3600  # an error in a step leads back to the last checkpoint
    arguments = [argument for key, value in settings.items() for argument in ("--set", f"{key}={value}")]
    failure = {"PHASE": phase, "CALL": str(call), "RANK_OF_FAILURE": str(ranks - 1), "MARKER": str(folder / name) + "!"}
    started = time.monotonic()
    result = subprocess.run(
        [*TRAIN, str(folder / "failing.py"), "--on", "cpu", "--run", str(folder / name), *arguments],
        env={**os.environ, **failure, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise SystemExit(f"{name}: {result.stderr[-3000:]}")
    return time.monotonic() - started


def best_weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "light" / "model.safetensors")


def difference(run: Path, reference: Path) -> float:
    """Return the largest difference of a weight, relative to the largest weight of its tensor."""
    weights, expected = best_weights(run), best_weights(reference)
    return max(float((weights[name] - expected[name]).abs().max() / expected[name].abs().max()) for name in expected)


def outcome(run: Path) -> str:
    """Return what the run did about the out-of-memory error."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    reductions = [event for event in events if event["event"] == "oom"]
    back = [f"back to update {event['back_to']}" for event in reductions if "back_to" in event]
    restarts = ["all ranks started again"] * (sum(event["event"] == "session" for event in events) - 1)
    return ", ".join([*(event["done"] for event in reductions), *back, *restarts])


def measure(sharding: str, folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a sharding, one for each phase."""
    (folder / "failing.py").write_text(RECIPE)
    undisturbed = train(folder, "undisturbed", 2, sharding)
    rows = []
    for phase in PHASES:
        calls = 3 if phase == "evaluation" else FAILING_UPDATE
        seconds = train(folder, phase, 2, sharding, phase, calls)
        row = {"sharding": sharding, "phase": phase, "outcome": outcome(folder / phase)}
        row |= {"more_seconds_than_undisturbed": seconds - undisturbed}
        if sharding in ("ddp", "zero1"):
            # One process computes both shards, but makes one step.
            train(folder, f"{phase} alone", 1, sharding, phase, calls if phase in ("step", "evaluation") else 2 * calls)
            row["equal"] = digests(folder / phase) == digests(folder / f"{phase} alone")
        else:
            row["largest_difference"] = difference(folder / phase, folder / "undisturbed")
        rows.append(row)
        print(row, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Run out of memory on one of two ranks.")
    parser.add_argument("--only", nargs="+", choices=SHARDINGS, default=SHARDINGS)
    parser.add_argument("--json", type=Path, default=RESULTS / "rank_memory.json")
    arguments = parser.parse_args()
    rows = []
    for sharding in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            rows += measure(sharding, Path(folder))
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
