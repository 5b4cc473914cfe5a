"""The first microbatch of a run, whose loss is computed before training to see how it behaves."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn

from shoestring.training.data.loading import Loader
from shoestring.training.engine.memory import free_unused_memory, out_of_memory
from shoestring.training.engine.precision import MixedPrecision
from shoestring.training.engine.side_effects import without_side_effects
from shoestring.training.engine.update import LossFunction

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class FirstMicrobatch:
    """What the loss of the first microbatch depends on."""

    model: nn.Module
    make_loss: Callable[[], LossFunction]
    """Returns the loss. It may count its calls in an attribute of the recipe, so each use has its own."""
    loader: Loader
    micro_batch: int
    mixed_precision: MixedPrecision
    device: torch.device
    seed: int
    poll: Callable[[], None] = lambda: None
    """Is called between forward passes, and may raise an exception that ends them."""

    def without_side_effects(self, compute: Callable[[], Result]) -> Result | None:
        """Return what `compute` returns; None if the recipe's code raises an exception or the memory does not suffice.

        The model is in evaluation mode, without dropout and with the stored statistics of BatchNorm, and no gradients
        are computed. Training modes, buffers and random states are restored.
        """
        lacks_memory = False
        try:
            with without_side_effects(self.model, self.device):
                return compute()
        except Exception as error:  # noqa: BLE001  (the recipe's code may raise anything)
            lacks_memory = out_of_memory(error)
        finally:
            if lacks_memory or self.device.type == "cuda":
                free_unused_memory()  # the first update finds the allocator's cache empty, as without this
        return None
