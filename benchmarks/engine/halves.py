"""What the comparison of a loss with that of its halves costs at the start of a run, for the recipes at size=tiny.

    python benchmarks/engine/halves.py [--times 5] [--json OUT]

Each time begins with a new model; the first pass, which imports packages and opens the data, is not counted. The time
of an update with the same microbatch is measured beside it.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from shoestring.recipe.contract import loss_at
from shoestring.recipe.finding import choose
from shoestring.training.data.loading import Loader
from shoestring.training.data.order import DataOrder
from shoestring.training.data.seeding import seed_all
from shoestring.training.engine.building import build
from shoestring.training.engine.determinism import deterministic
from shoestring.training.engine.first_microbatch import FirstMicrobatch
from shoestring.training.engine.halves import examine_loss
from shoestring.training.engine.update import update

RESULTS = Path(__file__).parents[1] / "results" / "halves.json"
RECIPES = ("temporal", "vqa", "legal", "cloud")
"""The recipes whose updates the engine makes; `chart` leaves them to TRL."""
CPU = torch.device("cpu")


def measure(name: str, times: int) -> dict[str, Any]:
    """Return the median seconds of the comparison and of an update, and whether a difference was reported."""
    loaded, settings = choose(name, {"size": "tiny", "precision": "fp32"})
    settings = settings.replace(micro_batch=loaded.effective_batch)
    data = loaded.data()["train"]
    order = DataOrder.of(data, effective_batch=loaded.effective_batch, seed=loaded.seed)
    comparisons, updates, difference = [], [], None
    with deterministic(), Loader(loaded.recipe, data, order, seed=loaded.seed, device=CPU, workers=0) as loader:
        for _ in range(times + 1):
            state = build(loaded, settings, CPU, updates_per_epoch=order.updates_per_epoch)
            loss = loss_at(loaded.recipe, 0, order.updates_per_epoch, state.epochs * order.updates_per_epoch)
            size, precision = loaded.effective_batch, state.mixed_precision
            started = time.perf_counter()
            first = FirstMicrobatch(
                model=state.model,
                make_loss=lambda loss=loss: loss,
                loader=loader,
                micro_batch=size,
                mixed_precision=precision,
                device=CPU,
                seed=loaded.seed,
            )
            difference = difference or examine_loss(first).difference
            comparisons.append(time.perf_counter() - started)
            seed_all(0)
            started = time.perf_counter()
            batches = loader.microbatches(0, size)
            update(state.model, state.optimizer, loss, batches, samples=size, mixed_precision=precision)
            updates.append(time.perf_counter() - started)
    return {
        "recipe": name,
        "micro_batch": loaded.effective_batch,
        "comparison_seconds": median(comparisons[1:]),
        "first_comparison_seconds": comparisons[0],
        "update_seconds": median(updates[1:]),
        "difference": difference.text if difference else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--json", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows = []
    for name in RECIPES:
        row = measure(name, arguments.times)
        rows.append(row)
        print(
            f"{name:10} micro_batch {row['micro_batch']:4}  comparison {row['comparison_seconds']:.3f} s  "
            f"update {row['update_seconds']:.3f} s  difference: {row['difference'] or 'none'}",
            flush=True,
        )
    environment = {"python": platform.python_version(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    arguments.json.write_text(
        json.dumps({"environment": environment, "times": arguments.times, "rows": rows}, indent=1)
    )


if __name__ == "__main__":
    main()
