"""What a LightningModule reads from its trainer during training and evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from shoestring.base.errors import UsageError
from shoestring.integrations.lightning.logs import Logs

if TYPE_CHECKING:
    from torch import nn


class Position(NamedTuple):
    """The place of an update in the run, each counted from 0."""

    epoch: int = 0
    batch_index: int = 0
    update: int = 0


class Run(Protocol):
    """What is known about the run as a whole: a `LightningRecipe`."""

    epochs: int

    @property
    def updates_per_epoch(self) -> int: ...

    @property
    def total_updates(self) -> int: ...

    @property
    def data_module(self) -> Any: ...


class TrainerAttributeError(UsageError, AttributeError):
    """The trainer's attribute does not exist here. `hasattr` and `getattr` with a default see an AttributeError."""


class NoLogger:
    """A logger that writes nowhere: each of its attributes and results is itself."""

    def __getattr__(self, name: str) -> NoLogger:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> NoLogger:
        return self


class Trainer:
    """The attribute `trainer` of a LightningModule.

    It has the attributes of Lightning's Trainer that are functions of the run and of the update's number.
    """

    max_steps, accumulate_grad_batches, world_size, num_devices, num_nodes = -1, 1, 1, 1, 1
    global_rank = local_rank = node_rank = 0
    is_global_zero, sanity_checking, barebones, fast_dev_run = True, False, False, False
    check_val_every_n_epoch, precision, progress_bar_callback = 1, "32-true", None

    def __init__(self, run: Run) -> None:
        self._run = run
        self.position, self.logs, self.phase = Position(), Logs(), "training"
        self.optimizers: list[Any] = []
        self.logger = NoLogger()
        self.loggers: list[Any] = [self.logger]
        self.callbacks: list[Any] = []
        self.callback_metrics: dict[str, Any] = {}

    current_epoch = property(attrgetter("position.epoch"))
    global_step = property(attrgetter("position.update"))
    max_epochs = property(attrgetter("_run.epochs"))
    num_training_batches = property(attrgetter("_run.updates_per_epoch"))
    estimated_stepping_batches = property(attrgetter("_run.total_updates"))
    datamodule = property(attrgetter("_run.data_module"))
    training = property(lambda self: self.phase == "training")
    validating = property(lambda self: self.phase == "validation")
    testing = property(lambda self: self.phase == "test")
    predicting = property(lambda self: self.phase == "prediction")
    evaluating = property(lambda self: self.phase in ("validation", "test"))

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Set the phase within the body."""
        previous, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = previous

    def attach(self, module: nn.Module) -> None:
        """Become the trainer of a LightningModule and of those in it, and receive what they log."""
        parts: list[Any] = list(module.modules())
        for part in parts:
            if hasattr(part, "_trainer") and hasattr(part, "log_dict"):
                part._trainer = self
                # An attribute of the object: Lightning's own method needs the parts of its Trainer.
                part.__dict__["log"] = self.logs.log

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TrainerAttributeError(
            f"self.trainer.{name} is not available: Shoestring trains without Lightning's Trainer",
            hint="the attributes that exist are in docs/guides/lightning.md; "
            f"getattr(self.trainer, {name!r}, None) works with both",
        )

    def __deepcopy__(self, _: dict[int, Any]) -> Trainer:
        # A copy of a model belongs to the same run, whose data is not copied.
        return self
