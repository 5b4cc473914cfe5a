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
from shoestring.checkpoint.light import load_light
from shoestring.checkpoint.weights import newest
from shoestring.data.seeding import derive, seed_all
from shoestring.engine.determinism import deterministic
from shoestring.engine.precision import mixed_precision
from shoestring.recipe.finding import find, load
from shoestring.recipe.options import LoadedRecipe
from shoestring.recipe.parts import Parts
from shoestring.recipe.subset import Subset
from shoestring.session.directory import RunDirectory
from shoestring.session.stop import session
from shoestring.train.evaluation import evaluate


def without_validation(kind: type) -> type:
    """A recipe's class that is not evaluated while it trains, as the guides' ways are not, and so trains to its end.

    It is judged by its loss afterwards. What the field's metrics say is the recipes' own affair; writing texts would
    take longer than this training.
    """

    def data(self: Any) -> dict[str, Any]:
        return {"train": super(bare, self).data()["train"]}

    bare: Any = type(kind.__name__, (kind,), {"data": data, "evaluate": None})
    return bare


def guide_of(case: Case) -> Any:
    """The guide's module: `train(loaded, model, folder, device)`, and `RECIPE` where another class than the built-in
    recipe's is trained in both ways."""
    return importlib.import_module(f"benchmarks.recipes.guides.{case.recipe}")


def samples_of(case: Case, loaded: LoadedRecipe) -> int:
    """How many there are in an epoch. Where they are drawn, they are drawn here, before anything is measured."""
    data = loaded.data()["train"]
    for number in range(len(data) if case.drawn else 0):
        data[number]
    # A chart is as many as completions are written of it.
    return len(data) * int(loaded.options.get("generations", 1))


def first_model(loaded: LoadedRecipe) -> nn.Module:
    """With the random weights that the engine begins with."""
    seed_all(derive(loaded.seed, "model"))
    model: nn.Module = (loaded.parts.learner or loaded.recipe.model)()
    return model


def guides_way(
    case: Case, loaded: LoadedRecipe, folder: Path, device: torch.device
) -> tuple[nn.Module, dict[str, Any]]:
    """The model, trained; bytes of the checkpoint."""
    model = first_model(loaded)
    guide_of(case).train(loaded, model, folder, device)
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
    model = first_model(loaded)
    load_light(run.light, model)
    checkpoint, stored = newest(run.checkpoints), run.plan()
    assert checkpoint is not None and stored is not None and stored.plan is not None
    chosen = stored.plan["settings"]
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


def written(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def judged(case: Case, loaded: LoadedRecipe, model: nn.Module, device: torch.device) -> dict[str, Any]:
    """By what and how, on data that it has not seen: by the recipe's own measure, else by its loss in fp32."""
    recipe = loaded.recipe
    whole = super(type(recipe), recipe).data()["validation"]
    some = Subset(whole, range(min(case.held_out, len(whole))))
    if measured := Parts.of(recipe).measured:
        metrics = measured(model.to(device), some, lambda pieces, _: pieces)
    else:
        with session() as stop, deterministic():
            metrics = evaluate(
                loaded, model, mixed_precision("fp32", device), some,
                micro_batch=loaded.effective_batch, device=device, stop=stop,
            )  # fmt: skip
    ((name, value),) = metrics.items()
    return {"judged_by": name, "loss": value}


def main() -> None:
    question = json.loads(sys.argv[1])
    case = cases(Path(question["law_ai"]) if question["law_ai"] else None)[question["case"]]
    device, folder = torch.device(question["device"]), Path(question["folder"])
    kind = getattr(guide_of(case), "RECIPE", None) or type(find(case.recipe).recipe)
    loaded = load(without_validation(kind)(), case.options)
    samples = samples_of(case, loaded)
    assert samples % loaded.effective_batch == 0, "the guides drop what is left over"
    updates_per_epoch = samples // loaded.effective_batch
    meter = Meter(device, loaded.epochs * updates_per_epoch)
    model, found = WAYS[question["way"]](case, loaded, folder, device)
    answer = {
        "samples_per_second": loaded.effective_batch / meter.seconds_per_update(updates_per_epoch),
        "peak_bytes": meter.peak_bytes,
        **judged(case, loaded, model, device),
        **found,
    }
    with os.fdopen(question["to"], "w") as answers:
        json.dump(answer, answers)


if __name__ == "__main__":
    main()
