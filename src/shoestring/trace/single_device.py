"""One GPU alone, and the places where training on several has more to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.optim import Optimizer


class SingleDevice:
    """Nothing is shared. An update calls these as it goes."""

    def __init__(self, model: nn.Module) -> None:
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        """What has gradients when backward has ended."""

    @contextmanager
    def during_optimizer_setup(self) -> Iterator[None]:
        """Here the model's parameters are those that the optimizer is to be made with."""
        yield

    def divide(self, optimizer: Optimizer) -> None:
        """Leave the optimizer what this GPU steps."""

    def before_forward(self) -> None:
        """A microbatch begins."""

    def before_backward(self) -> None:
        """Its loss is there."""

    def after_backward(self) -> None:
        """Its gradients are there."""

    def after_update(self) -> None:
        """The gradients are gone."""
