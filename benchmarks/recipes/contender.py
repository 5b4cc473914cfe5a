"""One training in one way, measured: `python -m benchmarks.recipes.contender QUESTION`; compare.py asks."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.recipes.cases import Case, cases
from benchmarks.recipes.meter import Meter
from torch import nn

import shoestring
from shoestring import recipe as recipes
from shoestring.checkpoint.light import load_light
from shoestring.checkpoint.weights import newest
from shoestring.recipe import LoadedRecipe
from shoestring.session.directory import RunDirectory
from shoestring.session.stop import session
from shoestring.subset import Subset
from shoestring.train.determinism import deterministic
from shoestring.train.evaluation import evaluate
from shoestring.train.precision import arithmetic
from shoestring.train.seeding import derive, seed_all


def judged_by_loss(kind: type, case: Case) -> type:
    """A recipe's class that is judged by the loss on a few samples, and so trains to its last epoch.

    What the field's metrics say is the recipes' own affair; writing texts would take longer than this training.
    """

    def data(self: Any) -> dict[str, Any]:
        parts = super(judged, self).data()
        held_out = parts["validation"]
        return {"train": parts["train"], "validation": Subset(held_out, range(min(case.held_out, len(held_out))))}

    plain = {"evaluate": None, "best": ("loss", "min"), "patience": None, "data": data}
    judged: Any = type(kind.__name__, (kind,), plain)
    return judged


def guide_of(case: Case) -> Any:
    """The guide's module: `train(...)`, and in place of this file's own where they do not suit its recipe
    `recipe(kind, case)`, `samples(loaded)`, `first_model(loaded)` and `held_out(loaded, model, device)`, whose number
    `JUDGED` names."""
    return importlib.import_module(f"benchmarks.recipes.guides.{case.recipe}")


def first_model(case: Case, loaded: LoadedRecipe) -> nn.Module:
    """With the random weights that the engine begins with."""
    seed_all(derive(loaded.seed, "model"))
    guide = guide_of(case)
    model: nn.Module = guide.first_model(loaded) if hasattr(guide, "first_model") else loaded.recipe.model()
    return model


def guides_way(
    case: Case, loaded: LoadedRecipe, folder: Path, device: torch.device
) -> tuple[nn.Module, dict[str, Any]]:
    """The model, trained; bytes of the checkpoint."""
    model = first_model(case, loaded)
    guide_of(case).train(loaded, model, case.guide, folder, device)
    return model, {"checkpoint_bytes": written(folder)}


def our_way(
    case: Case, loaded: LoadedRecipe, folder: Path, device: torch.device, **settings: str
) -> tuple[nn.Module, dict[str, Any]]:
    """The model with the weights that are kept for use; the settings, bytes of a full checkpoint and of those weights.

    Kept in fp16, which is a setting; all others but those given are the plan's.
    """
    run = RunDirectory(folder)
    on = "cpu" if device.type == "cpu" else "local"
    shoestring.train(loaded.recipe, run=folder, on=on, **case.options, light_weights="fp16", **settings)
    model = first_model(case, loaded)
    load_light(run.light, model)
    checkpoint, chosen = newest(run.checkpoints), (run.plan() or {})["plan"]["settings"]
    assert checkpoint is not None
    return model.to(device), {
        "settings": {name: chosen[name] for name in ("micro_batch", "precision", "checkpointing")},
        "full_checkpoint_bytes": written(checkpoint),
        "checkpoint_bytes": written(run.light),
    }


WAYS: dict[str, Callable[..., tuple[nn.Module, dict[str, Any]]]] = {
    "guide": guides_way,
    "shoestring": our_way,
    "shoestring, bf16": partial(our_way, precision="bf16"),
}


def training_samples(loaded: LoadedRecipe) -> int:
    return len(loaded.data()["train"])


def written(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def held_out_loss(loaded: LoadedRecipe, model: nn.Module, device: torch.device) -> float:
    """The recipe's loss on the validation data in fp32, the same for both ways."""
    with session() as stop, deterministic():
        return evaluate(
            loaded, model, arithmetic("fp32", device), loaded.data()["validation"],
            micro_batch=loaded.effective_batch, device=device, stop=stop,
        )["loss"]  # fmt: skip


def main() -> None:
    question = json.loads(sys.argv[1])
    case = cases(Path(question["law_ai"]) if question["law_ai"] else None)[question["case"]]
    device, folder = torch.device(question["device"]), Path(question["folder"])
    guide = guide_of(case)
    kind = getattr(guide, "recipe", judged_by_loss)(type(recipes.find(case.recipe).recipe), case)
    loaded = recipes.load(kind(), case.options)
    samples = getattr(guide, "samples", training_samples)(loaded)
    assert samples % loaded.effective_batch == 0, "the guides drop what is left over"
    updates_per_epoch = samples // loaded.effective_batch
    meter = Meter(device, loaded.epochs * updates_per_epoch)
    model, found = WAYS[question["way"]](case, loaded, folder, device)
    answer = {
        "samples_per_second": loaded.effective_batch / meter.seconds_per_update(updates_per_epoch),
        "peak_bytes": meter.peak_bytes,
        "judged_by": getattr(guide, "JUDGED", "loss"),
        "loss": getattr(guide, "held_out", held_out_loss)(loaded, model, device),
        **found,
    }
    with os.fdopen(question["to"], "w") as answers:
        json.dump(answer, answers)


if __name__ == "__main__":
    main()
