"""The call of a recipe's `after_update`, in training and in traces."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from shoestring.training.data.own_generators import OwnGenerators
from shoestring.training.data.seeding import derive


@torch.no_grad()
def run_after_update(
    hook: Callable[[nn.Module], Any], model: nn.Module, *, seed: int, number: int, generators: OwnGenerators
) -> None:
    """Call the hook after update `number`, with random numbers that neither the microbatch nor the process decides.

    `generators` are those that the loss and the model hold, which the hook can use.
    """
    generators.seed_all(derive(seed, "after_update", number))
    hook(model)
