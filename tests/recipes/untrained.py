"""Runs whose weights are random, so that their use can be tested without training."""

from pathlib import Path

import torch

from shoestring.recipe.finding import choose
from shoestring.training.checkpoint.light import save_light
from shoestring.training.data.seeding import derive, seed_all
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.stored import StoredPlan


def save_untrained(run: Path, recipe: str, **options: object) -> torch.nn.Module:
    """Write a run of a recipe with random weights in `best/`, and return its model with them."""
    loaded, _ = choose(recipe, options)
    run.mkdir(parents=True)
    plan = {"settings": {"micro_batch": 4, "precision": "fp32"}}
    StoredPlan.from_recipe(loaded, plan).write(RunDirectory(run).plan_file)
    loaded.data()
    seed_all(derive(loaded.seed, "model"))
    model = loaded.parts.learning.learner() if loaded.parts.learning.learner else loaded.recipe.model()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    save_light(RunDirectory(run).best, model, {"update": 3})
    return model.eval()
