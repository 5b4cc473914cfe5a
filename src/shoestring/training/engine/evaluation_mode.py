"""Evaluation mode for a while."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from torch import nn

from shoestring.techniques.pipeline.blocks import crossing_of


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Set every module to evaluation mode, and restore the mode of each: a recipe may keep frozen parts in it."""
    training_modes = {module: module.training for module in model.modules()}
    model.eval()
    crossing = crossing_of(model)
    try:
        with crossing.passing(trains=False) if crossing else nullcontext():
            yield
    finally:
        for module, mode in training_modes.items():
            module.training = mode
