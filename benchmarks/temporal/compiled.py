"""The effect of `compile` on an update of the temporal networks: all of its settings in one run.

    python -m benchmarks.temporal.compiled [--size full] [--batch 256] [--rounds 15] [--json OUT] [ARCHITECTURE...]

The updates are those of the engine. The settings take turns in every round, so that other load on the machine affects
all of them; on a CPU they use one thread and CPU time is measured. On a GPU `graphs` is the third setting: not
compiled, but captured once as a CUDA graph and launched as a whole.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from shoestring.recipe.finding import choose
from shoestring.training.engine.building import build
from shoestring.training.engine.update import update
from shoestring_recipes.temporal import Options
from shoestring_recipes.temporal.architectures import ARCHITECTURES


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("architectures", nargs="*", metavar="ARCHITECTURE", help="the default is all")
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--batch", type=int, default=Options().effective_batch)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    # The compiler of torch uses functions that torch has deprecated.
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names = options.architectures or list(ARCHITECTURES)
    rows = [compare(name, options.size, options.batch, options.rounds) for name in names]
    if options.json:
        content = {"device": str(device()), "torch": torch.__version__, "rows": rows}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


def compare(architecture: str, size: str, batch: int, rounds: int) -> dict[str, Any]:
    """Measure, for each setting of `compile`, the updates per second, the time of the first update, and the difference
    of the first loss from the plain one, without dropout (compiled code draws other masks).
    """
    settings = ["no", "yes", *(["graphs"] if device().type == "cuda" else [])]
    updates, first = {}, {}
    for setting in settings:
        updates[setting] = build_update(architecture, size, batch, setting)
        first[setting] = time_update(updates[setting])
    seconds: dict[str, list[float]] = {setting: [] for setting in settings}
    for number in range(rounds + 2):
        for setting, run_update in updates.items():
            duration, _ = time_update(run_update)
            if number >= 2:
                seconds[setting].append(duration)
    plain = median(seconds["no"])
    results = {
        setting: {
            "updates_per_second": 1 / median(seconds[setting]),
            "against_plain": plain / median(seconds[setting]),
            "first_seconds": first[setting][0],
            "loss_differs": abs(first[setting][1] - first["no"][1]),
        }
        for setting in settings
    }
    row = {"architecture": architecture, "size": size, "batch": batch, **results}
    print(json.dumps(row), flush=True)
    return row


def build_update(architecture: str, size: str, batch: int, setting: str) -> Callable[[], float]:
    """Return a function that runs an update on a constant batch on the device and returns its loss."""
    loaded, settings = choose(
        "temporal",
        {"architecture": architecture, "size": size, "dropout": 0.0, "effective_batch": batch, "compile": setting,
         "precision": "fp32", "checkpointing": "no", "optimizer_kernel": "fused"},
    )  # fmt: skip
    recipe, state = loaded.recipe, build(loaded, settings, device())
    inputs = torch.randn(batch, recipe.options.seq_len, 29, device=device())
    labels = torch.randint(3, (batch,), device=device())

    def run_update() -> float:
        result = update(
            state.model,
            state.optimizer,
            recipe.loss,
            [((inputs, labels), batch)],
            samples=batch,
            mixed_precision=state.mixed_precision,
            clip_norm=recipe.clip_norm,
            run=state.cuda_graphs,
        )
        return float(result.loss)

    return run_update


def time_update(run_update: Callable[[], float]) -> tuple[float, float]:
    """Run an update and return its seconds (CPU time on a CPU) and its loss."""
    clock = time.perf_counter if device().type == "cuda" else time.process_time
    start = clock()
    loss = run_update()
    return clock() - start, loss


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


if __name__ == "__main__":
    main()
