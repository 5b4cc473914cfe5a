"""Run and measure one training: `python -m benchmarks.recipes.contender QUESTION`, started by compare.py."""

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
from shoestring.base.settings import Settings
from shoestring.recipe.finding import find, load
from shoestring.recipe.options import LoadedRecipe
from shoestring.recipe.parts import Parts
from shoestring.recipe.subset import Subset
from shoestring.training.checkpoint.light import load_light
from shoestring.training.checkpoint.weights import newest
from shoestring.training.data.seeding import derive, seed_all
from shoestring.training.engine.determinism import deterministic
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.evaluation import evaluate
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.session.stop import session


def without_validation(kind: type) -> type:
    """Return a recipe class without evaluation during training, like the guides, which therefore runs all updates.

    It is evaluated by its loss afterwards. The metrics of the field are left out: generating texts would take longer
    than this training.
    """

    def data(self: Any) -> dict[str, Any]:
        return {"train": super(reduced, self).data()["train"]}

    reduced: Any = type(kind.__name__, (kind,), {"data": data, "evaluate": None})
    return reduced


def import_guide(case: Case) -> Any:
    """Import the guide's module: `train(loaded, model, folder, device)`, and optionally `RECIPE`, a recipe class that
    both sides train instead of the built-in one."""
    return importlib.import_module(f"benchmarks.recipes.guides.{case.recipe}")


def count_samples(case: Case, loaded: LoadedRecipe) -> int:
    """Return the number of samples in an epoch. Drawn samples are drawn here, before the measurement."""
    data = loaded.data()["train"]
    for number in range(len(data) if case.drawn else 0):
        data[number]
    # Each completion of a chart counts as a sample.
    return len(data) * int(loaded.options.get("generations", 1))


def build_model(loaded: LoadedRecipe) -> nn.Module:
    """Build the model with the random initial weights of the engine."""
    seed_all(derive(loaded.seed, "model"))
    model: nn.Module = (loaded.parts.learning.learner or loaded.recipe.model)()
    return model


def train_as_guide(
    case: Case, loaded: LoadedRecipe, folder: Path, device: torch.device
) -> tuple[nn.Module, dict[str, Any]]:
    """Return the trained model and the size of the checkpoint."""
    model = build_model(loaded)
    import_guide(case).train(loaded, model, folder, device)
    return model, {"checkpoint_bytes": folder_bytes(folder)}


def train_with_shoestring(
    case: Case, loaded: LoadedRecipe, folder: Path, device: torch.device, **settings: str
) -> tuple[nn.Module, dict[str, Any]]:
    """Return the model with the light weights, the settings, and the sizes of a full checkpoint and of those weights.

    The light weights are stored in fp16; all settings that are not passed come from the plan.
    """
    run = RunDirectory(folder)
    on = "cpu" if device.type == "cpu" else "local"
    shoestring.train(loaded.recipe, run=folder, on=on, **case.options, light_weights="fp16", **settings)
    model = build_model(loaded)
    load_light(run.light, model)
    checkpoint, stored = newest(run.checkpoints), run.plan()
    assert checkpoint is not None and stored is not None and stored.plan is not None
    chosen = stored.plan["settings"]
    return model.to(device), {
        "settings": {name: chosen[name] for name in ("micro_batch", "precision", "checkpointing")},
        "full_checkpoint_bytes": folder_bytes(checkpoint),
        "checkpoint_bytes": folder_bytes(run.light),
    }


CONTENDERS: dict[str, Callable[..., tuple[nn.Module, dict[str, Any]]]] = {
    "guide": train_as_guide,
    "shoestring": train_with_shoestring,
    "shoestring, bf16": partial(train_with_shoestring, precision="bf16"),
}


def folder_bytes(folder: Path) -> int:
    """Return the total size of the files in `folder`."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def evaluate_model(case: Case, loaded: LoadedRecipe, model: nn.Module, device: torch.device) -> dict[str, Any]:
    """Return the name and value of a metric on validation data: the recipe's own, or else the loss in fp32."""
    recipe = loaded.recipe
    validation = super(type(recipe), recipe).data()["validation"]
    subset = Subset(validation, range(min(case.held_out, len(validation))))
    if measured := Parts.from_recipe(recipe).evaluation.measured:
        metrics = measured(model.to(device), subset, lambda pieces, _: pieces)
    else:
        with session() as stop, deterministic():
            metrics = evaluate(
                loaded, model, mixed_precision("fp32", device), subset,
                micro_batch=loaded.effective_batch, device=device, stop=stop, settings=Settings(),
            )  # fmt: skip
    ((name, value),) = metrics.items()
    return {"judged_by": name, "loss": value}


def main() -> None:
    question = json.loads(sys.argv[1])
    case = cases(Path(question["law_ai"]) if question["law_ai"] else None)[question["case"]]
    device, folder = torch.device(question["device"]), Path(question["folder"])
    kind = getattr(import_guide(case), "RECIPE", None) or type(find(case.recipe).recipe)
    loaded = load(without_validation(kind)(), case.options)
    samples = count_samples(case, loaded)
    assert samples % loaded.effective_batch == 0, "the guides drop an incomplete last batch"
    updates_per_epoch = samples // loaded.effective_batch
    meter = Meter(device, loaded.epochs * updates_per_epoch)
    model, measurements = CONTENDERS[question["way"]](case, loaded, folder, device)
    answer = {
        "samples_per_second": loaded.effective_batch / meter.seconds_per_update(updates_per_epoch),
        "peak_bytes": meter.peak_bytes,
        **evaluate_model(case, loaded, model, device),
        **measurements,
    }
    with os.fdopen(question["to"], "w") as answers:
        json.dump(answer, answers)


if __name__ == "__main__":
    main()
