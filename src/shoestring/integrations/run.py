"""A run whose updates are made by somebody else's trainer: what `train.loop.train` is for recipes without one.

until the run is finished: the recipe's trainer, surviving
    after an epoch: evaluate, keep the best weights
where memory runs out: the same again from the last checkpoint, in smaller microbatches
then the weights to use, and the metrics of the best ones on the test part
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from shoestring.checkpoint.light import load_light, save_light
from shoestring.checkpoint.store import Store
from shoestring.data.seeding import derive, seed_all
from shoestring.engine.determinism import deterministic
from shoestring.engine.environment import environment
from shoestring.engine.memory import Failure, attempted, free
from shoestring.engine.recovery import OutOfMemory
from shoestring.errors import RunError
from shoestring.integrations.trainer import Survival
from shoestring.recipe.contract import part
from shoestring.recipe.options import LoadedRecipe
from shoestring.session.directory import RunDirectory
from shoestring.session.stop import SessionOver, Stop
from shoestring.session.stretch import polled
from shoestring.settings import Settings
from shoestring.train.evaluation import best_entry
from shoestring.train.loop import Outcome
from shoestring.train.record import Record


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
        if "validation" in data and part(loaded.recipe, "measured", None):
            survival.evaluate = functools.partial(_epoch, loaded, survival, data["validation"])
        metrics: dict[str, Any] = {}
        error = None
        try:
            trainer = _trained(loaded, settings, survival, data["train"], device)
            if not survival.ended:
                metrics = _finish(loaded, trainer, data, survival)
        except SessionOver as over:
            survival.ended, error = over.reason, over.error
        status, reason = ("paused", survival.ended) if survival.ended else ("finished", f"all {loaded.epochs} epochs")
        update, total = record.update, survival.total_updates
        if error:
            raise error
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


def _epoch(loaded: LoadedRecipe, survival: Survival, samples: Any, trainer: Any, history: list[dict[str, Any]]) -> None:
    """Validation metrics of the epoch that just ended; its weights are kept where they are the best so far.

    Raises SessionOver when it is time to stop before the end.
    """
    record, update = survival.record, int(trainer.state.global_step)
    metrics, seconds = _measured(loaded, trainer, samples, survival)
    history.append({"epoch": len(history) + 1, "update": update, "metrics": metrics})
    best = best_entry(loaded.recipe, history) is history[-1]
    record.evaluated("validation", update, metrics, epoch=len(history), seconds=seconds, best=best)
    if best:
        _keep_weights(trainer, survival, "best", metrics)


def _finish(loaded: LoadedRecipe, trainer: Any, data: dict[str, Any], survival: Survival) -> dict[str, Any]:
    """The weights to use, and the metrics: of the best epoch, and of its weights on the test part.

    Raises SessionOver when it is time to stop before the end.
    """
    best = best_entry(loaded.recipe, trainer._kept.history)
    metrics: dict[str, Any] = {"validation": best["metrics"]} if best else {}
    _keep_weights(trainer, survival, "light", metrics.get("validation", {}))
    if "test" in data and part(loaded.recipe, "measured", None):
        if best:
            load_light(survival.run.best, trainer._kept.model)
        metrics["test"], seconds = _measured(loaded, trainer, data["test"], survival)
        update = int(trainer.state.global_step)
        survival.record.evaluated("test", update, metrics["test"], epoch=loaded.epochs, seconds=seconds, best=False)
    return metrics


def _measured(loaded: LoadedRecipe, trainer: Any, samples: Any, survival: Survival) -> tuple[dict[str, Any], float]:
    """The recipe's metrics on `samples`, and the seconds that they took."""

    def polls(pieces: Iterator[Any], total: int) -> Iterator[Any]:
        return polled(survival.stop, "evaluation", pieces, total)

    started = time.monotonic()
    return dict(loaded.recipe.measured(trainer._kept.model, samples, polls)), time.monotonic() - started


def _keep_weights(trainer: Any, survival: Survival, kind: str, metrics: dict[str, Any]) -> None:
    """The weights alone in `best/` or `light/`."""
    started, update = time.monotonic(), int(trainer.state.global_step)
    folder = {"best": survival.run.best, "light": survival.run.light}[kind]
    path = save_light(
        folder,
        trainer._kept.model,
        {"update": update, "metrics": metrics},
        rounded=survival.settings.light_weights,
    )
    survival.record.saved_light(path, update, time.monotonic() - started, kind)
