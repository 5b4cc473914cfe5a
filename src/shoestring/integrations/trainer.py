"""Hugging Face's Trainer and what is built on it, such as TRL's: the same class, surviving.

    from shoestring.integrations.trainer import surviving

    with surviving("runs/mine", limit_seconds=9 * 3600) as survive:
        trainer = survive(GRPOTrainer)(model=..., args=..., train_dataset=...)
        trainer.train()  # again in the next session, to continue

What changes: it stops by itself, saved, before the limit or at SIGTERM; checkpoints are written in the background,
beside, verified and then renamed; a run that is continued ends in the bits of one that was never stopped. For that
every update draws its random numbers from (seed, number of the update), and an epoch's order is a function of (seed,
epoch).

What stays as the library has it: loss, microbatches, logging, evaluation. Random numbers that a dataset draws while its
samples are fetched are not restored. One process, one device.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from shoestring.checkpoint.fitting import misfits
from shoestring.checkpoint.store import Store
from shoestring.checkpoint.trained import frozen_digest, trained_state
from shoestring.engine.determinism import deterministic
from shoestring.engine.environment import device_name
from shoestring.errors import CheckpointError, QuestionError, RunError
from shoestring.integrations.told import Told, between_cycles
from shoestring.session.directory import RunDirectory
from shoestring.session.stop import Stop, session
from shoestring.settings import Settings
from shoestring.train.record import Record
from shoestring.train.saving import Saver

if TYPE_CHECKING:
    from torch import nn
    from transformers import Trainer

T = TypeVar("T", bound="Trainer")

_LIBRARIES = ("transformers", "accelerate", "peft", "trl")


@dataclass(kw_only=True)
class Survival:
    """What a trainer needs to survive, and how it ended."""

    run: RunDirectory
    stop: Stop
    record: Record
    settings: Settings
    """Of them: how often to save, how many checkpoints to keep."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """What decides the bits besides the libraries; where nothing is given, the trainer's own arguments."""
    disk_bytes: int | None = None
    allow_inexact: bool = False
    notes: tuple[str, ...] = ()
    """What a person should know, told once the session has begun."""
    evaluate: Callable[[Any, list[dict[str, Any]]], None] | None = None
    """After an epoch: given the trainer and the epochs so far, to which it adds the one that has ended."""
    total_updates: int = field(default=0, init=False)
    begun: bool = field(default=False, init=False)
    """Whether the record has the beginning of the session."""
    ended: str = field(default="", init=False)
    """Why it stopped before its end; empty where it did not."""

    def __call__(self, trainer: type[T]) -> type[T]:
        """The class `trainer`, surviving."""
        return _surviving(trainer, self)


@contextmanager
def surviving(
    run: Path | str,
    *,
    limit_seconds: float | None = None,
    disk_bytes: int | None = None,
    save_every_seconds: float | None = None,
    keep_checkpoints: int = 2,
    allow_inexact: bool = False,
) -> Iterator[Survival]:
    """A session of at most `limit_seconds` in the directory `run`, held for this process.

    Raises QuestionError where another process is at it or it holds something else.
    """
    directory = RunDirectory(Path(run))
    directory.create()
    settings = Settings(save_every_seconds=save_every_seconds, keep_checkpoints=keep_checkpoints)
    with directory.locked(), session(limit_seconds) as stop:
        if directory.plan() is None:
            directory.write_plan({"recipe": "a trainer", "settings": settings.json()})
        with deterministic(), Record(directory, None, stop.deadline, target="local") as record:
            survival = Survival(
                run=directory,
                stop=stop,
                record=record,
                settings=settings,
                disk_bytes=disk_bytes,
                allow_inexact=allow_inexact,
            )
            yield survival
            record.ended("paused" if survival.ended else "finished", survival.ended or "all updates", record.update, {})


def _surviving(base: type[T], survival: Survival) -> type[T]:
    """A subclass of `base` that saves and restores as the engine does and polls the clock."""
    from transformers import PrinterCallback
    from transformers.trainer_callback import ProgressCallback

    class Surviving(base):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if self.args.world_size > 1:
                raise QuestionError(
                    f"a surviving {base.__name__} runs in one process, not in {self.args.world_size}",
                    hint="start it without torchrun or accelerate launch",
                )
            for talker in (PrinterCallback, ProgressCallback):  # stdout is for data, and progress is told of below
                self.remove_callback(talker)
            self.add_callback(Told(self, survival))

        def train(self, *args: Any, **kwargs: Any) -> Any:
            """As `Trainer.train`, from the run's newest checkpoint where it has one."""
            self._kept = _Kept(self)
            store = Store(
                survival.run.checkpoints,
                keep=survival.settings.keep_checkpoints,
                limit_bytes=survival.disk_bytes,
                on_damaged=survival.record.damaged,
            )
            environment = {
                **_libraries(),
                "frozen weights": frozen_digest(self._kept.model),
                **(survival.environment or _environment(self)),
            }
            with (
                Saver(
                    store,
                    survival.settings,
                    survival.record,
                    survival.stop.deadline,
                    environment,
                    not_finite=_not_finite,
                ) as self.saver,
                tempfile.TemporaryDirectory() as place,
            ):
                if self.saver.restore(self._kept, allow_inexact=survival.allow_inexact):
                    # All that the library itself wants to read: which update it is.
                    state = json.dumps(self._kept.saved["trainer"])
                    Path(place, "trainer_state.json").write_text(state, encoding="utf-8")
                    kwargs["resume_from_checkpoint"] = place
                try:
                    return super().train(*args, **kwargs)
                finally:
                    survival.record.progress.__exit__(None, None, None)

        def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
            self._order = super()._get_train_sampler(*args, **kwargs)
            return self._order

        def _save_checkpoint(self, *_: Any) -> None:
            """Asked for by the trainer's own arguments or by the clock."""
            if between_cycles(self):
                self.saver.begin(self._kept)

        def _load_from_checkpoint(self, *_: Any, **__: Any) -> None:
            """Weights come with all else, below."""

        def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
            if checkpoint is not None:
                self._kept.take_over()

        def _load_scaler(self, *_: Any) -> None:
            """With all else."""

        def _load_rng_state(self, *_: Any) -> None:
            """There is none: see `Told.on_step_begin`."""

    Surviving.__name__ = Surviving.__qualname__ = base.__name__
    return Surviving


class _Kept:
    """A trainer's state as the saver sees it."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.saved: Mapping[str, Any] = {}
        self.history: list[dict[str, Any]] = []

    @property
    def update(self) -> int:
        return int((self.saved["trainer"] if self.saved else vars(self._trainer.state))["global_step"])

    @property
    def model(self) -> nn.Module:
        model: nn.Module = self._trainer.accelerator.unwrap_model(self._trainer.model)
        return model

    def pack(self) -> dict[str, Any]:
        """Weights that are trained, buffers, and all that the trainer goes on with."""
        trainer = self._trainer
        scaler = trainer.accelerator.scaler
        return {
            "model": trained_state(self.model),
            "optimizer": trainer.optimizer.state_dict(),
            "scheduler": trainer.lr_scheduler.state_dict(),
            "scaler": scaler.state_dict() if scaler else None,
            "fit": {"micro_batch": trainer.args.per_device_train_batch_size},
            "trainer": json.loads(json.dumps(dataclasses.asdict(trainer.state))),
            "history": self.history,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Only kept until the trainer has made its optimizer: `take_over`."""
        lacking = {"model", "optimizer", "scheduler", "scaler", "trainer"} - saved.keys()
        if lacking:
            raise CheckpointError(f"the checkpoint is of no trainer: it has no {', '.join(sorted(lacking))}")
        self.saved, self.history = saved, list(saved.get("history", []))

    def take_over(self) -> None:
        """Bring model, optimizer, schedule and loss scale to what was saved.

        Raises CheckpointError where they are of another model or optimizer.
        """
        trainer, saved = self._trainer, self.saved
        if problems := misfits(saved["model"], trained_state(self.model)):
            raise CheckpointError("the checkpoint is of another model", problems=problems[:20])
        self.model.load_state_dict(saved["model"], strict=False)
        try:
            # In memory of its own: a file's pages are not aligned as torch allocates, and vector code may round the
            # ends of an unaligned tensor differently.
            trainer.optimizer.load_state_dict(_cloned(saved["optimizer"]))
            trainer.lr_scheduler.load_state_dict(saved["scheduler"])
            if trainer.accelerator.scaler and saved["scaler"]:
                trainer.accelerator.scaler.load_state_dict(saved["scaler"])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"the checkpoint cannot be restored: {type(error).__name__}: {error}") from error
        self.saved = {}


def _cloned(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _cloned(item) for key, item in value.items()}
    return [_cloned(item) for item in value] if isinstance(value, list) else value


def _environment(trainer: Any) -> dict[str, Any]:
    """What, changed, lets a continued run end in other bits."""
    args, device = trainer.args, trainer.args.device
    facts = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device_name(device),
        "trainer": type(trainer).__name__,
        "micro_batch": args.per_device_train_batch_size,
        "accumulation": args.gradient_accumulation_steps,
        "precision": "fp16" if args.fp16 else "bf16" if args.bf16 else "fp32",
        "seed": args.seed,
    }
    if device.type == "cpu":
        facts["threads"] = torch.get_num_threads()
        facts["instructions"] = torch.backends.cpu.get_cpu_capability()
    return facts


def _libraries() -> dict[str, str | None]:
    return {library: _version(library) for library in _LIBRARIES}


def _version(library: str) -> str | None:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def _not_finite(update: int, what: str, value: float) -> RunError:
    return RunError(
        f"the {what} after update {update} is {value}",
        hint="lower the learning rate, clip gradients or train in fp32; the checkpoints before it are whole",
    )
