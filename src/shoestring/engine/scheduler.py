"""A torch scheduler whose steps follow from the number of the update.

A checkpoint does not contain the scheduler. After a restore, its initial state and the initial hyperparameters of the
optimizer's groups are restored, and its steps are made again: the same arithmetic in the same order has the same bits.
A step takes 10 to 60 microseconds on a slow processor, so a hundred thousand updates take a few seconds.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from shoestring.errors import UsageError
from shoestring.recipe.optimizers import BuiltOptimizer


class SteppedScheduler:
    """The scheduler of an optimizer before its first update."""

    def __init__(self, built: BuiltOptimizer, optimizer: Optimizer, updates_per_epoch: int) -> None:
        """`optimizer` makes the updates. It may have replaced the scheduler's own, as one with 8-bit states does."""
        self._scheduler, self._optimizer = built.scheduler, optimizer
        self._updates_per_step = built.every * (updates_per_epoch if built.by_epoch else 1)
        self._steps: int | None = 0
        """The steps that were made; None if the optimizer's groups have been replaced since."""
        self._initial_state = copy.deepcopy(self._scheduler.state_dict())
        self._initial_values = [_hyperparameters(group) for group in self._own_groups]
        self.name = type(self._scheduler).__name__
        self.by_epoch = built.by_epoch

    def require_steps(self, total_updates: int) -> None:
        """Raise UsageError if the scheduler is known to end before the last of `total_updates`."""
        limit, needed = getattr(self._scheduler, "total_steps", None), self._steps_before(total_updates - 1)
        if isinstance(limit, int) and limit < needed:
            raise UsageError(
                f"{self.name} was made with total_steps={limit}, but the run has {total_updates} updates, and "
                f"it makes {needed} steps before the last of them",
                hint=f"total_steps={needed + 1}",
            )

    def rewind(self) -> None:
        """The optimizer's state has been loaded: make all steps again before the next update."""
        self._steps = None

    def apply(self, update: int) -> None:
        """Set the hyperparameters of the groups for update number `update` (from 0)."""
        steps = self._steps_before(update)
        if self._steps is None or steps < self._steps:
            self._reset()
            self._steps = 0
        if self._steps < steps:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that no step of the optimizer came before
                for _ in range(steps - self._steps):
                    self._step()
        self._steps = steps
        for group, own in zip(self._optimizer.param_groups, self._own_groups, strict=True):
            if group is not own:
                group.update({name: value for name, value in _hyperparameters(own).items() if name in group})

    @property
    def _own_groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = self._scheduler.optimizer.param_groups
        return groups

    def _steps_before(self, update: int) -> int:
        return update // self._updates_per_step

    def _reset(self) -> None:
        for group, values in zip(self._own_groups, self._initial_values, strict=True):
            group.update(copy.deepcopy(values))
        self._scheduler.load_state_dict(copy.deepcopy(self._initial_state))

    def _step(self) -> None:
        try:
            self._scheduler.step()
        except (ValueError, ArithmeticError, LookupError) as error:
            raise UsageError(
                f"{self.name} cannot make another step: {error}", hint="give it as many steps as the run has updates"
            ) from error


def _hyperparameters(group: dict[str, Any]) -> dict[str, Any]:
    """Return copies of the numbers of a parameter group, which a scheduler may change: rates, momenta, betas."""
    return {name: copy.deepcopy(value) for name, value in group.items() if name != "params" and _is_numeric(value)}


def _is_numeric(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_numeric, value))
    return isinstance(value, float | int | Tensor) and not isinstance(value, bool)
