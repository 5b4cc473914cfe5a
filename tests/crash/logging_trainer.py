"""The updates of `logging_recipe` made by transformers' Trainer: as a recipe, and as a script with `surviving`.

shoestring train tests/crash/logging_trainer.py:Library --run DIR
python -m tests.crash.logging_trainer DIR [LIMIT_SECONDS]
"""

import sys
import tempfile
import time
from pathlib import Path

import torch

from shoestring.base.errors import ShoestringError
from tests.by_trainer import ByTrainer
from tests.crash.logging_recipe import EFFECTIVE_BATCH, Exact, log


class ExactMean(Exact):
    """`Exact` with the mean that the Trainer expects; its samples per microbatch are a power of two, so it is exact."""

    def loss(self, model, batch):
        total, count = super().loss(model, batch)
        return total / count


class Library(ExactMean):
    """A recipe with a `trainer`."""

    def trainer(self, *arguments, **names):
        return ByTrainer(ExactMean()).trainer(*arguments, **names)

    def measured(self, *arguments, **names):
        return ByTrainer(ExactMean()).measured(*arguments, **names)


def run_script(run: Path, limit_seconds: float | None) -> None:
    """Train as a script with a trainer of its own does."""
    from shoestring.base.settings import Settings
    from shoestring.integrations.trainer import surviving

    recipe = ExactMean()
    log(f"begin {time.monotonic()}")  # its limit does not include the imports before
    with (
        tempfile.TemporaryDirectory() as folder,
        surviving(run, limit_seconds=limit_seconds, save_every_seconds=0.0, exit_when_paused=False) as survive,
    ):
        torch.manual_seed(3)
        data = recipe.data()["train"]
        settings = Settings(micro_batch=EFFECTIVE_BATCH // 2)
        ByTrainer(recipe).trainer(settings, data, survive, folder=Path(folder), device=torch.device("cpu")).train()
    log(f"end {time.monotonic()}")  # nor the time to leave Python after


if __name__ == "__main__":
    try:
        run_script(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else None)
    except (ShoestringError, OSError) as error:  # as the command line does
        sys.stderr.write(f"error: {error}\n")
        sys.exit(getattr(error, "status", 1))
