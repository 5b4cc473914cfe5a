"""The call of a recipe's `after_update`, in training and in traces."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from shoestring.training.data.seeding import derive, seed_all


@torch.no_grad()
def run_after_update(hook: Callable[[nn.Module], Any], model: nn.Module, *, seed: int, number: int) -> None:
    """Call the hook after update `number`, with random numbers that neither the microbatch nor the process decides."""
    seed_all(derive(seed, "after_update", number))
    hook(model)
