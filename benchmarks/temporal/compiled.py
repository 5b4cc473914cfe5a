"""What `compile` does to an update of the temporal networks here: each of its settings side by side, in one run.

    python -m benchmarks.temporal.compiled [--size full] [--batch 256] [--rounds 15] [--json OUT] [ARCHITECTURE...]

An update is the engine's own. Contenders take turns round by round, so that whatever else the machine does meets both;
on a CPU they have one thread and are timed by its seconds of work. On a GPU `graphs` is the third: not compiled, but
captured once as a CUDA graph and launched whole.
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

from shoestring.engine.state import build
from shoestring.engine.update import update
from shoestring.recipe.finding import choose
from shoestring.recipes.temporal import Options
from shoestring.recipes.temporal.architectures import ARCHITECTURES


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("architectures", nargs="*", metavar="ARCHITECTURE", help="by default all")
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--batch", type=int, default=Options().effective_batch)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    # torch's own compiler uses what torch calls deprecated.
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names = chosen.architectures or list(ARCHITECTURES)
    rows = [compared(name, chosen.size, chosen.batch, chosen.rounds) for name in names]
    if chosen.json:
        said = {"device": str(device()), "torch": torch.__version__, "rows": rows}
        chosen.json.write_text(json.dumps(said, indent=1) + "\n")


def compared(architecture: str, size: str, batch: int, rounds: int) -> dict[str, Any]:
    """Updates per second of each setting of `compile`, the time its first update took, and how far the first loss is
    from the plain one, without dropout (compiled code draws other masks).
    """
    settings = ["no", "yes", *(["graphs"] if device().type == "cuda" else [])]
    updates, first = {}, {}
    for setting in settings:
        updates[setting] = update_of(architecture, size, batch, setting)
        first[setting] = timed(updates[setting])
    seconds: dict[str, list[float]] = {setting: [] for setting in settings}
    for number in range(rounds + 2):
        for setting, once in updates.items():
            took, _ = timed(once)
            if number >= 2:
                seconds[setting].append(took)
    plain = median(seconds["no"])
    found = {
        setting: {
            "updates_per_second": 1 / median(seconds[setting]),
            "against_plain": plain / median(seconds[setting]),
            "first_seconds": first[setting][0],
            "loss_differs": abs(first[setting][1] - first["no"][1]),
        }
        for setting in settings
    }
    row = {"architecture": architecture, "size": size, "batch": batch, **found}
    print(json.dumps(row), flush=True)
    return row


def update_of(architecture: str, size: str, batch: int, setting: str) -> Callable[[], float]:
    """An update on batches that stay the same, on the device; gives its loss."""
    loaded, settings = choose(
        "temporal",
        {"architecture": architecture, "size": size, "dropout": 0.0, "effective_batch": batch, "compile": setting,
         "precision": "fp32", "checkpointing": "no", "optimizer_kernel": "fused"},
    )  # fmt: skip
    recipe, state = loaded.recipe, build(loaded, settings, device())
    inputs = torch.randn(batch, recipe.options.seq_len, 29, device=device())
    labels = torch.randint(3, (batch,), device=device())

    def once() -> float:
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

    return once


def timed(once: Callable[[], float]) -> tuple[float, float]:
    clock = time.perf_counter if device().type == "cuda" else time.process_time
    began = clock()
    loss = once()
    return clock() - began, loss


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


if __name__ == "__main__":
    main()
