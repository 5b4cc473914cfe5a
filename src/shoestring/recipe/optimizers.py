"""A recipe's optimizer, and the torch scheduler that `optimizer(model)` may return with it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoestring.errors import UsageError
from shoestring.recipe.parts import Parts

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

_STAGES = """one optimizer with a parameter group for each of them, and stages that decide which loss is computed: \
stages = ("d", "g"), stage(update, ...) -> "d" or "g", loss(model, batch, stage). Parameters without a gradient are \
not stepped (docs/recipe.md has an example)"""
_SCHEDULE = "schedule(update, updates_per_epoch, total_updates) -> the factor on the learning rates"


@dataclass(frozen=True, kw_only=True)
class BuiltOptimizer:
    """An optimizer, with its scheduler if the recipe has returned one."""

    optimizer: Optimizer
    scheduler: Any = None
    """A torch scheduler, whose `step` needs no argument."""
    by_epoch: bool = False
    """Whether the scheduler makes its steps after epochs rather than after updates."""
    every: int = 1
    """The scheduler makes one step after so many updates or epochs."""


def build_optimizer(recipe: object, model: nn.Module) -> Optimizer:
    """Return the recipe's optimizer for the model's trainable parameters."""
    return build_with_scheduler(recipe, model).optimizer


def build_with_scheduler(recipe: object, model: nn.Module) -> BuiltOptimizer:
    """Return the recipe's optimizer and its scheduler.

    Raises UsageError if `optimizer(model)` returns several optimizers, a scheduler that cannot be stepped by the number
    of updates, or anything else.
    """
    parts = Parts.from_recipe(recipe)
    if parts.optimizer is None:
        import torch

        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return BuiltOptimizer(optimizer=torch.optim.AdamW(trainable, lr=parts.learning_rate))
    built = _read(parts.optimizer(model))
    if built.scheduler is not None:
        _require_steppable(built)
        if parts.schedule is not None:
            raise UsageError(
                f"the recipe has a schedule and optimizer() returned a {_name(built.scheduler)}: both would set the "
                "learning rates",
                hint="keep one of them",
            )
    return built


def _read(returned: Any) -> BuiltOptimizer:
    """Read what `optimizer(model)` has returned: an optimizer, or one of the forms with a scheduler.

    The forms with lists and with keys are those of Lightning, where a scheduler makes a step after each epoch unless
    its `interval` is "step".
    """
    if is_optimizer(returned):
        return BuiltOptimizer(optimizer=returned)
    if isinstance(returned, Mapping) and "optimizer" in returned:
        return _with_configuration(returned["optimizer"], returned.get("lr_scheduler"))
    if isinstance(returned, tuple | list):
        optimizers, schedulers = (returned, [])
        if len(returned) == 2 and not _has_optimizer(returned[1]):
            optimizers, schedulers = returned
            if is_optimizer(optimizers) and not isinstance(schedulers, list | tuple | Mapping):
                return BuiltOptimizer(optimizer=optimizers, scheduler=schedulers)
        optimizers, schedulers = _as_list(optimizers), _as_list(schedulers)
        if len(optimizers) == 1 and is_optimizer(optimizers[0]) and len(schedulers) < 2:
            return _with_configuration(optimizers[0], schedulers[0] if schedulers else None)
        if len(optimizers) > 1 and all(map(_has_optimizer, optimizers)):
            raise UsageError(f"optimizer() returned {len(optimizers)} optimizers, but a run has one", hint=_STAGES)
        if len(schedulers) > 1:
            raise UsageError(
                f"optimizer() returned {len(schedulers)} schedulers for one optimizer",
                hint="combine them: torch.optim.lr_scheduler.SequentialLR or ChainedScheduler",
            )
    raise UsageError(
        f"optimizer() returned {_describe(returned)}",
        hint="return a torch optimizer over the parameters of the model, for example "
        "torch.optim.AdamW(model.parameters(), lr=1e-3), or the pair (optimizer, torch scheduler)",
    )


def _with_configuration(optimizer: Any, scheduler: Any) -> BuiltOptimizer:
    """Return an optimizer with a scheduler as Lightning configures it."""
    if not is_optimizer(optimizer):
        return _read(optimizer)  # raises an error that describes it
    configuration = scheduler if isinstance(scheduler, Mapping) else {"scheduler": scheduler}
    if configuration.get("scheduler") is None:
        return BuiltOptimizer(optimizer=optimizer)
    interval, every = configuration.get("interval", "epoch"), configuration.get("frequency", 1)
    if interval not in ("epoch", "step") or not isinstance(every, int) or every < 1:
        raise UsageError(
            f"optimizer() returned a scheduler with interval={interval!r} and frequency={every!r}",
            hint='the interval is "epoch" or "step", the frequency a positive number of them',
        )
    return BuiltOptimizer(
        optimizer=optimizer, scheduler=configuration["scheduler"], by_epoch=interval == "epoch", every=every
    )


def _require_steppable(built: BuiltOptimizer) -> None:
    """Raise UsageError for a scheduler that is not a function of the number of its steps."""
    scheduler = built.scheduler
    methods = ("step", "state_dict", "load_state_dict")
    if isinstance(scheduler, type) or not all(callable(getattr(scheduler, name, None)) for name in methods):
        raise UsageError(
            f"optimizer() returned {_describe(scheduler)} as the scheduler",
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
            f"{_name(scheduler)} cannot be used: its step needs {', '.join(required)}, but the learning rates of a run "
            "are a function of the number of the update, so that a resumed run has the same ones",
            hint=f"use a scheduler whose step() needs nothing, or write a method {_SCHEDULE}; patience ends a run "
            "whose validation metric stops improving",
        )
    if getattr(scheduler, "optimizer", None) is not built.optimizer:
        raise UsageError(
            f"the {_name(scheduler)} that optimizer() returned belongs to another optimizer",
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


def _name(scheduler: Any) -> str:
    return type(scheduler).__name__
