"""What a recipe's model does without gradients before an update: a phase of its own, as the engine evaluates."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from shoestring.recipe.parts import Parts
from shoestring.settings import Precision
from shoestring.trace import autocast, pretend
from shoestring.trace.recorder import Recorder


def follow(
    recorder: Recorder, recipe: Any, model: nn.Module, *, samples: int, precision: Precision, number: int
) -> None:
    """The steps of `recipe.rollout` over all `samples` of update `number`; nothing where the recipe has none."""
    steps = Parts.of(recipe).rollout
    if steps is None:
        return
    recorder.mark("generation", number)
    batch = pretend.batch_like(recipe.batch(samples))
    recorder.label(pretend.tensors(batch), "batch")
    training = {module: module.training for module in model.modules()}
    model.eval()
    with torch.no_grad(), autocast.region(precision):
        for kept in steps(model, batch):
            recorder.label(pretend.tensors(kept), "KV cache")
            # The next step replaces one tensor after the other; holding all of this one's would keep both.
            del kept
    for module, mode in training.items():
        module.training = mode
