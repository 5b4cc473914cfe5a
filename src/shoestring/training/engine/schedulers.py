"""Torch schedulers whose steps follow from the number of the update.

A checkpoint does not contain the schedulers. After a restore, their initial states and the initial hyperparameters of
the optimizer's groups are restored, and their steps are made again: the same arithmetic in the same order has the same
bits. A step takes 10 to 60 microseconds on a slow processor, so a hundred thousand updates take a few seconds.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from shoestring.base.errors import UsageError
from shoestring.recipe.optimizers import BuiltOptimizer, BuiltScheduler


class SteppedSchedulers:
    """The schedulers of an optimizer before its first update."""

    def __init__(self, built: BuiltOptimizer, optimizer: Optimizer, updates_per_epoch: int) -> None:
        """`optimizer` makes the updates. It may have replaced the schedulers' own, as one with 8-bit states does."""
        self.schedulers = built.schedulers
        self._own_optimizer: Optimizer = built.schedulers[0].scheduler.optimizer
        self._optimizer, self._updates_per_epoch = optimizer, updates_per_epoch
        self._update: int | None = 0
        """The update whose hyperparameters are set; None if the optimizer's groups have been replaced since."""
        self._initial_states = [copy.deepcopy(item.scheduler.state_dict()) for item in built.schedulers]
        self._initial_values = [_hyperparameters(group) for group in self._own_optimizer.param_groups]

    def require_steps(self, total_updates: int) -> None:
        """Raise UsageError if a scheduler is known to end before the last of `total_updates`."""
        for item in self.schedulers:
            limit = getattr(item.scheduler, "total_steps", None)
            if not isinstance(limit, int):
                continue
            needed = sum(item.is_due(update, self._updates_per_epoch) for update in range(total_updates - 1))
            if limit < needed:
                raise UsageError(
                    f"{item.name} was made with total_steps={limit}, but the run has {total_updates} updates, and "
                    f"it makes {needed} steps before the last of them",
                    hint=f"total_steps={needed + 1}",
                )

    def rewind(self) -> None:
        """The optimizer's state has been loaded: make all steps again before the next update."""
        self._update = None

    def apply(self, update: int) -> None:
        """Set the hyperparameters of the groups for update number `update` (from 0)."""
        if self._update is None or update < self._update:
            self._reset()
            self._update = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that no step of the optimizer came before
            for earlier in range(self._update, update):
                for item in self.schedulers:
                    if item.is_due(earlier, self._updates_per_epoch):
                        _step(item)
        self._update = update
        for group, own in zip(self._optimizer.param_groups, self._own_optimizer.param_groups, strict=True):
            if group is not own:
                group.update({name: value for name, value in _hyperparameters(own).items() if name in group})

    def _reset(self) -> None:
        for group, values in zip(self._own_optimizer.param_groups, self._initial_values, strict=True):
            group.update(copy.deepcopy(values))
        for item, state in zip(self.schedulers, self._initial_states, strict=True):
            item.scheduler.load_state_dict(copy.deepcopy(state))


def _step(item: BuiltScheduler) -> None:
    try:
        item.scheduler.step()
    except (ValueError, ArithmeticError, LookupError) as error:
        raise UsageError(
            f"{item.name} cannot make another step: {error}", hint="give it as many steps as the run has updates"
        ) from error


def _hyperparameters(group: dict[str, Any]) -> dict[str, Any]:
    """Return copies of the numbers of a parameter group, which a scheduler may change: rates, momenta, betas."""
    return {name: copy.deepcopy(value) for name, value in group.items() if name != "params" and _is_numeric(value)}


def _is_numeric(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_numeric, value))
    return isinstance(value, float | int | Tensor) and not isinstance(value, bool)
