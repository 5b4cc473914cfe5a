"""A recipe's optimizer, and the torch schedulers that `optimizer(model)` may return with it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoestring.base.errors import UsageError
from shoestring.recipe.parts import Parts

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

_STAGES = """in a recipe, use one optimizer with a parameter group for each of them, and stages that decide which \
loss is computed: stages = ("d", "g"), stage(update, ...) -> "d" or "g", loss(model, batch, stage). Parameters \
without a gradient are not stepped (docs/guides/recipe.md has an example)"""
_KEYS = {"scheduler", "interval", "frequency", "monitor", "strict", "name", "reduce_on_plateau"}
_SCHEDULE = "schedule(update, updates_per_epoch, total_updates) -> the factor on the learning rates"


@dataclass(frozen=True, kw_only=True)
class BuiltScheduler:
    """A torch scheduler, whose `step` needs no argument, and the updates after which it makes a step."""

    scheduler: Any
    by_epoch: bool = False
    """Whether the scheduler makes its steps after epochs rather than after updates."""
    every: int = 1
    """The scheduler makes a step after so many epochs, or updates of an epoch."""

    def is_due(self, update: int, updates_per_epoch: int) -> bool:
        """Return whether it makes a step after update number `update` (from 0), as Lightning counts them."""
        epoch, index = divmod(update, updates_per_epoch)
        if self.by_epoch:
            return index + 1 == updates_per_epoch and (epoch + 1) % self.every == 0
        return (index + 1) % self.every == 0

    @property
    def name(self) -> str:
        """The scheduler's type."""
        return type(self.scheduler).__name__


@dataclass(frozen=True, kw_only=True)
class BuiltOptimizer:
    """An optimizer, with its schedulers if the recipe has returned some."""

    optimizer: Optimizer
    schedulers: tuple[BuiltScheduler, ...] = ()


def build_optimizer(recipe: object, model: nn.Module) -> Optimizer:
    """Return the recipe's optimizer for the model's trainable parameters."""
    return build_with_schedulers(recipe, model).optimizer


def build_with_schedulers(recipe: object, model: nn.Module) -> BuiltOptimizer:
    """Return the recipe's optimizer and its schedulers.

    Raises UsageError if `optimizer(model)` returns several optimizers, a scheduler that cannot be stepped by the number
    of updates, or anything else.
    """
    parts = Parts.from_recipe(recipe)
    if parts.learning.optimizer is None:
        import torch

        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return BuiltOptimizer(optimizer=torch.optim.AdamW(trainable, lr=parts.learning.learning_rate))
    returned: Any = parts.learning.optimizer(model)
    built = returned if isinstance(returned, BuiltOptimizer) else read_optimizer(returned, "optimizer()")
    if built.schedulers and parts.learning.schedule is not None:
        raise UsageError(
            f"the recipe has a schedule and optimizer() returned a {built.schedulers[0].name}: both would set the "
            "learning rates",
            hint="keep one of them",
        )
    return built


def read_optimizer(returned: Any, source: str) -> BuiltOptimizer:
    """Read what the method `source` has returned: an optimizer, or one of the forms with schedulers.

    The forms with lists and with keys are those of Lightning, where a scheduler makes a step after each epoch unless
    its `interval` is "step". Raises UsageError for anything else.
    """
    optimizers, schedulers = _split(returned)
    if len(optimizers) > 1 and all(map(is_optimizer, optimizers)):
        raise UsageError(f"{source} returned {len(optimizers)} optimizers, but a run has one", hint=_STAGES)
    if len(optimizers) != 1 or not is_optimizer(optimizers[0]):
        unusable = optimizers[0] if len(optimizers) == 1 else returned
        raise UsageError(
            f"{source} returned {_describe(unusable)}, not a torch optimizer",
            hint="return a torch optimizer over the parameters of the model, for example "
            "torch.optim.AdamW(model.parameters(), lr=1e-3), or the pair (optimizer, torch scheduler)",
        )
    for scheduler in schedulers:
        _require_steppable(scheduler, optimizers[0], source)
    return BuiltOptimizer(optimizer=optimizers[0], schedulers=tuple(schedulers))


def _split(returned: Any) -> tuple[list[Any], list[BuiltScheduler]]:
    """Return the optimizers and the schedulers of a form."""
    if isinstance(returned, Mapping):
        optimizers = [returned["optimizer"]] if "optimizer" in returned else []
        return optimizers, _configured(returned.get("lr_scheduler"))
    if isinstance(returned, tuple | list):
        if len(returned) == 2 and not _has_optimizer(returned[1]):
            optimizers, schedulers = returned
            if not is_optimizer(optimizers):
                return _as_list(optimizers), _configured(schedulers)
            if not isinstance(schedulers, tuple | list | Mapping):
                return [optimizers], [BuiltScheduler(scheduler=schedulers)] if schedulers is not None else []
            return [optimizers], _configured(schedulers)
        parts = [_split(item) for item in returned]
        return [item for part in parts for item in part[0]], [item for part in parts for item in part[1]]
    return [returned], []


def _configured(schedulers: Any) -> list[BuiltScheduler]:
    """Return the schedulers of one of Lightning's forms: one, a dictionary with it, or a list of these."""
    configurations = [
        item if isinstance(item, Mapping) else {"scheduler": item} for item in _as_list(schedulers) if item is not None
    ]
    return [
        _with_interval(configuration) for configuration in configurations if configuration.get("scheduler") is not None
    ]


def _with_interval(configuration: Mapping[str, Any]) -> BuiltScheduler:
    interval, every = configuration.get("interval", "epoch"), configuration.get("frequency", 1)
    problems = [f"{key!r} is not a key of an lr_scheduler" for key in configuration if key not in _KEYS]
    if interval not in ("epoch", "step") or not isinstance(every, int) or every < 1:
        problems.append(f"interval={interval!r} and frequency={every!r}")
    if problems:
        raise UsageError(
            "the configuration of a scheduler cannot be used",
            problems=problems,
            hint='the interval is "epoch" or "step", the frequency a positive number of them',
        )
    return BuiltScheduler(scheduler=configuration["scheduler"], by_epoch=interval == "epoch", every=every)


def _require_steppable(built: BuiltScheduler, optimizer: Any, source: str) -> None:
    """Raise UsageError for a scheduler that is not a function of the number of its steps."""
    scheduler = built.scheduler
    methods = ("step", "state_dict", "load_state_dict")
    if isinstance(scheduler, type) or not all(callable(getattr(scheduler, name, None)) for name in methods):
        raise UsageError(
            f"{source} returned {_describe(scheduler)} as the scheduler",
            hint=f"return a scheduler of torch.optim.lr_scheduler, or write a method {_SCHEDULE}",
        )
    required = [
        parameter.name
        for parameter in inspect.signature(scheduler.step).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if required:
        raise UsageError(
            f"{built.name} cannot be used: its step needs {', '.join(required)}, but the learning rates of a run "
            "are a function of the number of the update, so that a resumed run has the same ones",
            hint=f"use a scheduler whose step() needs nothing, or write a method {_SCHEDULE}; patience ends a run "
            "whose validation metric stops improving",
        )
    if getattr(scheduler, "optimizer", None) is not optimizer:
        raise UsageError(
            f"the {built.name} that {source} returned belongs to another optimizer",
            hint="make the scheduler with the optimizer that is returned",
        )


def is_optimizer(value: Any) -> bool:
    """Return whether the value has the methods of torch's optimizers, as wrappers of them have."""
    names = ("param_groups", "step", "zero_grad", "state_dict", "load_state_dict")
    return not isinstance(value, type) and all(hasattr(value, name) for name in names)


def _has_optimizer(value: Any) -> bool:
    """Return whether the value is an optimizer or one of Lightning's configurations with one."""
    return is_optimizer(value["optimizer"] if isinstance(value, Mapping) and "optimizer" in value else value)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]


def _describe(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}, not an object of it"
    return f"a {type(value).__name__}"
