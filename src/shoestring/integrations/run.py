"""A run whose updates are made by somebody else's trainer: what `train.loop.train` is for recipes without one.

until the run is finished: the recipe's trainer, surviving
where memory runs out: the same again from the last checkpoint, in smaller microbatches
then the weights to use, and the metrics
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from shoestring.checkpoint.light import save_light
from shoestring.checkpoint.store import Store
from shoestring.errors import RunError
from shoestring.integrations.trainer import Survival
from shoestring.recipe import LoadedRecipe, part
from shoestring.session.directory import RunDirectory
from shoestring.session.stop import SessionOver, Stop
from shoestring.session.stretch import polled
from shoestring.settings import Settings
from shoestring.train.determinism import deterministic
from shoestring.train.environment import environment
from shoestring.train.loop import Outcome
from shoestring.train.memory import Failure, attempted, free
from shoestring.train.record import Record
from shoestring.train.recovery import OutOfMemory
from shoestring.train.seeding import derive, seed_all


def train(
    loaded: LoadedRecipe,
    settings: Settings,
    run: RunDirectory,
    *,
    target: str,
    device: torch.device,
    stop: Stop,
    disk_bytes: int | None = None,
    allow_inexact: bool = False,
) -> Outcome:
    """Train until the run is finished or the session is over; arguments and errors are those of `train.loop.train`."""
    with deterministic(), Record(run, loaded, stop.deadline, target=target) as record:
        with stop.at_once():
            data = loaded.data()
        survival = Survival(
            run=run,
            stop=stop,
            record=record,
            settings=settings,
            environment=environment(settings, device, loaded),
            disk_bytes=disk_bytes,
            allow_inexact=allow_inexact,
            notes=tuple(part(loaded.recipe, "notes", list)()),
        )
        trainer = _trained(loaded, settings, survival, data["train"], device)
        update, total = int(trainer.state.global_step), int(trainer.state.max_steps)
        metrics: dict[str, Any] = {}
        if not survival.ended:
            model = trainer.accelerator.unwrap_model(trainer.model)
            started = time.monotonic()
            path = save_light(run.light, model, {"update": update, "metrics": {}})
            record.saved_light(path, update, time.monotonic() - started, "light")
            try:
                metrics = _metrics(loaded, trainer, data, survival)
            except SessionOver as over:
                survival.ended = over.reason
        status, reason = ("paused", survival.ended) if survival.ended else ("finished", f"all {loaded.epochs} epochs")
        record.ended(status, reason, update, metrics)
    return Outcome(
        status="paused" if survival.ended else "finished",
        reason=reason,
        update=update,
        total_updates=total,
        metrics=metrics,
    )


def _trained(loaded: LoadedRecipe, settings: Settings, survival: Survival, data: Any, device: torch.device) -> Any:
    """The trainer when it has stopped, in microbatches that fit.

    Raises RunError where not even one of a single sample does.
    """
    micro_batch = learnt(survival.run, settings)
    while True:
        with tempfile.TemporaryDirectory() as place:
            attempt = functools.partial(_attempt, loaded, settings, survival, data, device, micro_batch, Path(place))
            done = attempted(attempt)
        if not isinstance(done, Failure):
            return done
        free()
        if micro_batch == 1:
            raise RunError(
                f"out of memory even with microbatches of 1: {done.said}",
                hint="shorter prompts and completions, activation checkpointing, or a GPU with more memory",
            )
        smaller = micro_batch // 2
        event = OutOfMemory(failure=done.said, micro_batch=micro_batch, done=f"microbatch {smaller}")
        back_to = Store(survival.run.checkpoints).updates()[-1:]
        survival.record.out_of_memory(
            "update", event, update=survival.record.update, back_to=back_to[0] if back_to else 0
        )
        micro_batch = smaller


def _attempt(
    loaded: LoadedRecipe,
    settings: Settings,
    survival: Survival,
    data: Any,
    device: torch.device,
    micro_batch: int,
    place: Path,
) -> Any:
    seed_all(derive(loaded.seed, "model"))
    trainer = loaded.recipe.trainer(
        settings.replace(micro_batch=micro_batch), data, survival, folder=place, device=device
    )
    trainer.train()
    return trainer


def learnt(run: RunDirectory, settings: Settings) -> int:
    """The microbatch that the run has come down to, or the settings'."""
    assert settings.micro_batch is not None
    restored = Store(run.checkpoints).load() if run.checkpoints.exists() else None
    fit: Mapping[str, Any] = (restored.state.get("fit") if restored else None) or {}
    return min(settings.micro_batch, int(fit.get("micro_batch", settings.micro_batch)))


def _metrics(loaded: LoadedRecipe, trainer: Any, data: dict[str, Any], survival: Survival) -> dict[str, Any]:
    """By part of the data, where the recipe can measure.

    Raises SessionOver when it is time to stop before the end.
    """
    measured = part(loaded.recipe, "measured", None)
    found: dict[str, Any] = {}
    for name in ("validation", "test"):
        if measured is None or name not in data:
            continue
        started, update = time.monotonic(), int(trainer.state.global_step)

        def polls(samples: Iterator[Any], total: int) -> Iterator[Any]:
            return polled(survival.stop, "evaluation", samples, total)

        found[name] = dict(measured(trainer, data[name], polls))
        survival.record.evaluated(
            name, update, found[name], epoch=loaded.epochs, seconds=time.monotonic() - started, best=False
        )
    return found
