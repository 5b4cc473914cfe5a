"""What `configure_optimizers` returns, in each of the forms that Lightning documents: one optimizer, and schedulers."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.optim import Optimizer

from shoestring.errors import UsageError

_STEPPED_BY_METRIC = "ReduceLROnPlateau"
_KEYS = {"scheduler", "interval", "frequency", "monitor", "strict", "name", "reduce_on_plateau"}


@dataclass(frozen=True)
class Scheduler:
    """A torch scheduler that is stepped after every `frequency` updates of an epoch, or epochs."""

    scheduler: Any
    interval: str = "epoch"
    frequency: int = 1

    def is_due(self, update: int, updates_per_epoch: int) -> bool:
        """Return whether it is stepped after update number `update`."""
        epoch, index = divmod(update, updates_per_epoch)
        if self.interval == "step":
            return (index + 1) % self.frequency == 0
        return index + 1 == updates_per_epoch and (epoch + 1) % self.frequency == 0


def read(configured: Any, name: str) -> tuple[Optimizer, list[Scheduler]]:
    """Return the optimizer and the schedulers that `configure_optimizers` of the module `name` has returned.

    Raises UsageError for several optimizers or none, and for a scheduler that depends on metrics.
    """
    optimizers, schedulers = _split(configured)
    if len(optimizers) != 1:
        raise UsageError(
            f"{name}.configure_optimizers returned {len(optimizers)} optimizers",
            problems=["one optimizer makes each update"],
            hint="put all parameters into one optimizer with several parameter groups; for alternating updates, such "
            "as those of a GAN, use the parts of the engine in a loop of your own (docs/own_loop.md)",
        )
    if not isinstance(optimizers[0], Optimizer):
        raise UsageError(
            f"{name}.configure_optimizers returned a {type(optimizers[0]).__name__}",
            hint="return a torch optimizer, or one of the forms in docs/lightning.md",
        )
    return optimizers[0], [_scheduler(item, name) for item in schedulers]


def _split(configured: Any) -> tuple[list[Any], list[Any]]:
    if configured is None:
        return [], []
    if isinstance(configured, Mapping):
        scheduler = configured.get("lr_scheduler")
        schedulers = scheduler if isinstance(scheduler, list) else [] if scheduler is None else [scheduler]
        return [configured["optimizer"]] if "optimizer" in configured else [], schedulers
    if isinstance(configured, list | tuple):
        if len(configured) == 2 and all(isinstance(part, list | tuple) for part in configured):
            return list(configured[0]), list(configured[1])
        pairs = [_split(item) for item in configured]
        return [item for pair in pairs for item in pair[0]], [item for pair in pairs for item in pair[1]]
    return [configured], []


def _scheduler(item: Any, name: str) -> Scheduler:
    settings = dict(item) if isinstance(item, Mapping) else {"scheduler": item}
    scheduler = settings.get("scheduler")
    interval, frequency = settings.get("interval", "epoch"), settings.get("frequency", 1)
    problems = [f"{key!r} is not a key of an lr_scheduler" for key in settings if key not in _KEYS]
    if type(scheduler).__name__ == _STEPPED_BY_METRIC or settings.get("reduce_on_plateau"):
        problems.append(f"{type(scheduler).__name__} follows a metric, while learning rates follow the update's number")
    elif not callable(getattr(scheduler, "step", None)) or not hasattr(scheduler, "state_dict"):
        problems.append(f"the scheduler is a {type(scheduler).__name__}")
    if interval not in ("epoch", "step") or not isinstance(frequency, int) or frequency < 1:
        problems.append(f"interval={interval!r}, frequency={frequency!r}: epoch or step, and at least 1")
    if problems:
        raise UsageError(
            f"a scheduler of {name}.configure_optimizers cannot be used",
            problems=problems,
            hint="use a scheduler of torch.optim.lr_scheduler that is stepped without arguments, such as "
            "CosineAnnealingLR or OneCycleLR",
        )
    return Scheduler(scheduler, interval, frequency)


@dataclass
class Schedule:
    """The settings of an optimizer's parameter groups in each update, as its schedulers set them.

    They are a function of the update's number: after a resumed start the schedulers are stepped again from the first
    update, which changes nothing but these settings.
    """

    optimizer: Optimizer
    schedulers: list[Scheduler]
    _initial_states: list[Any] = field(init=False)
    _initial: list[dict[str, Any]] = field(init=False)
    _current: list[dict[str, Any]] = field(init=False)
    _update: int = field(init=False, default=0)
    """The number of the update that `_current` is for."""

    def __post_init__(self) -> None:
        self._initial_states = [copy.deepcopy(item.scheduler.state_dict()) for item in self.schedulers]
        self._initial = self._current = self._settings()
        if self.schedulers:
            for group in self.optimizer.param_groups:
                group["lr"] = group.get("initial_lr", group["lr"])
            self.optimizer.register_step_pre_hook(lambda *_: self._set(self._current))

    def factor(self, update: int, updates_per_epoch: int) -> float:
        """Return the factor on the learning rate of the first group in update number `update`.

        The optimizer's next step uses each group's own settings: of its learning rate, and of its momentum.
        """
        if not self.schedulers:
            return 1.0
        if update < self._update:
            for item, state in zip(self.schedulers, self._initial_states, strict=True):
                item.scheduler.load_state_dict(copy.deepcopy(state))
            self._update, self._current = 0, self._initial
        before = self._settings()
        self._set(self._current)
        with warnings.catch_warnings():
            # torch warns that schedulers are stepped before the optimizer.
            warnings.simplefilter("ignore", UserWarning)
            while self._update < update:
                for item in self.schedulers:
                    if item.is_due(self._update, updates_per_epoch):
                        item.scheduler.step()
                self._update += 1
        self._current = self._settings()
        self._set(before)
        group = self._current[0]
        rate, initial = float(group["lr"]), float(group.get("initial_lr", group["lr"]))
        return rate / initial if initial else 1.0

    def _settings(self) -> list[dict[str, Any]]:
        # Without flags, such as the kernel of the step, which others set.
        return [
            {key: value for key, value in group.items() if type(value) in (int, float, tuple)}
            for group in self.optimizer.param_groups
        ]

    def _set(self, settings: list[dict[str, Any]]) -> None:
        for group, values in zip(self.optimizer.param_groups, settings, strict=True):
            group.update(values)
