"""Trace a recipe's rollout: a phase without gradients before an update, run as the engine runs evaluation."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from shoestring.recipe.parts import Parts
from shoestring.settings import Precision
from shoestring.trace import autocast, simulated_device
from shoestring.trace.recorder import Recorder


def run(recorder: Recorder, recipe: Any, model: nn.Module, *, samples: int, precision: Precision, number: int) -> None:
    """Run the steps of `recipe.rollout` over all `samples` of update `number`, if the recipe has a rollout."""
    steps = Parts.from_recipe(recipe).rollout
    if steps is None:
        return
    recorder.mark("generation", number)
    batch = simulated_device.move_batch(recipe.batch(samples))
    recorder.label(simulated_device.tensors(batch), "batch")
    training = {module: module.training for module in model.modules()}
    model.eval()
    with torch.no_grad(), autocast.region(precision):
        for cache in steps(model, batch):
            recorder.label(simulated_device.tensors(cache), "KV cache")
            # The next step replaces one tensor after another; a reference here would keep both alive.
            del cache
    for module, mode in training.items():
        module.training = mode
