"""Training on one GPU, and the base class of the ways to train on several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.optim import Optimizer


class SingleDevice:
    """The hooks of an update, which do nothing on one GPU."""

    def __init__(self, model: nn.Module) -> None:
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        """The parameters that have gradients after backward."""

    @contextmanager
    def during_optimizer_setup(self) -> Iterator[None]:
        """Return a context in which the model's parameters are those to create the optimizer with."""
        yield

    def divide(self, optimizer: Optimizer) -> None:
        """Leave only the parameters that this GPU updates in the optimizer."""

    def before_update(self) -> None:
        """Run before the first microbatch of an update."""

    def before_forward(self) -> None:
        """Run before the forward pass of each microbatch."""

    def before_backward(self) -> None:
        """Run after the loss of each microbatch is computed."""

    def after_backward(self) -> None:
        """Run after the gradients of each microbatch are accumulated."""

    def after_shard(self) -> None:
        """Run after the microbatches of each logical shard."""

    def exchange(self) -> None:
        """Run after all logical shards, before the optimizer's step."""

    def after_update(self) -> None:
        """Run after the gradients are cleared."""
