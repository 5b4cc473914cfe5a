"""Training on one GPU, and the base class of the ways to train on several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.optim import Optimizer

from shoestring.planning.trace.microbatches import Microbatches
from shoestring.training.engine.precision import MixedPrecision
from shoestring.training.engine.update import LossFunction, add_gradients, step


class SingleDevice:
    """The engine's update on one GPU, and hooks in it, which do nothing there."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer: Any = None

    @contextmanager
    def during_optimizer_setup(self) -> Iterator[None]:
        """Return a context in which the model's parameters are those to create the optimizer with."""
        yield

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Use the optimizer in updates."""
        self.optimizer = optimizer

    def update(
        self,
        loss: LossFunction,
        number: int,
        microbatches: Microbatches,
        *,
        mixed_precision: MixedPrecision,
        clip_norm: float | None,
    ) -> None:
        """Make an update of the engine."""
        microbatches.begin_update(number)
        total = add_gradients(
            self.model,
            loss,
            microbatches,
            samples=microbatches.size * microbatches.count,
            mixed_precision=mixed_precision,
            run=microbatches.run,
        )
        assert total is not None
        microbatches.mark("optimizer")
        step(self.optimizer, total, mixed_precision=mixed_precision, clip_norm=clip_norm)

    def before_update(self) -> None: ...

    def before_forward(self) -> None: ...

    def before_backward(self) -> None: ...

    def after_backward(self) -> None: ...

    def after_update(self) -> None:
        """Run after the gradients are cleared."""
