"""How training works here, from top to bottom.

    restore the newest checkpoint, or save the first
    until every epoch is done, or patience is:
        after an epoch: evaluate, keep the best weights
        else: one update
        save when it is due
    evaluate the best weights on the test part
    at any time: stop when asked, saved; go on from there in another session

Everything it needs is public and stands alone: the data order, the update, the deadline, the checkpoint store.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

from shoestring.checkpoint.light import load_light, save_light
from shoestring.checkpoint.store import Store
from shoestring.errors import CheckpointError
from shoestring.recipe import LoadedRecipe, datasets, part
from shoestring.session.directory import RunDirectory
from shoestring.session.stop import SessionOver, Stop
from shoestring.settings import Settings
from shoestring.train.batches import collate_of, fetch, to_device
from shoestring.train.determinism import deterministic
from shoestring.train.environment import device_name, environment
from shoestring.train.evaluation import best_entry, evaluate, out_of_patience
from shoestring.train.meter import Meter
from shoestring.train.order import DataOrder, split
from shoestring.train.record import Record
from shoestring.train.saving import Saver
from shoestring.train.seeding import derive, seed_all
from shoestring.train.state import TrainingState, build, trains_batch_norm
from shoestring.train.update import UpdateResult, update


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a session ended."""

    status: Literal["finished", "paused"]
    reason: str
    update: int
    total_updates: int
    metrics: dict[str, Any]
    """By part of the data: the best validation metrics so far, and at the end the test metrics."""


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
    """Train until the run is finished or the session is over.

    `settings` leave nothing open, `disk_bytes` is what the platform lets the run's directory have, and the caller
    holds the run's lock.

    Raises ShoestringError where the run cannot go on; state.json then says that it failed and why.
    """
    assert settings.micro_batch is not None
    data = datasets(loaded.recipe)
    order = DataOrder(samples=len(data["train"]), effective_batch=loaded.effective_batch, seed=loaded.seed)
    total = loaded.epochs * order.updates_per_epoch
    here = environment(settings, device, loaded)

    with deterministic(), Record(run, loaded, total, stop.deadline) as record:
        session = _Session(
            loaded=loaded, settings=settings, run=run, data=data, order=order, device=device, stop=stop, record=record
        )
        state = build(loaded, settings, device)
        store = Store(
            run.checkpoints, keep=settings.keep_checkpoints, limit_bytes=disk_bytes, on_damaged=record.damaged
        )
        saver = Saver(store, settings, record, stop.deadline, here)
        meter = Meter(record.events, record.progress, stop.deadline)
        restored = saver.restore(state, allow_inexact=allow_inexact)
        record.started(state.update, target=target, device=device_name(device), settings=settings)
        if not restored:
            # Before the first update: a disk that cannot hold a checkpoint is found out now, not in an hour.
            saver.save(state)
        if trains_batch_norm(state.model) and settings.micro_batch < loaded.effective_batch:
            record.note(
                f"BatchNorm takes its statistics from each microbatch of {settings.micro_batch}, not from the "
                f"effective batch of {loaded.effective_batch}: another microbatch would learn a little differently"
            )
        try:
            with record.progress:
                while not (ended := _why_ended(session, state)):
                    stop.check()
                    if _epoch_ended(session, state):
                        meter.flush()
                        _evaluate_epoch(session, state)
                        meter.restart()
                    else:
                        with stop.deadline.measure("update"):
                            result, samples = _one_update(session, state)
                        state.update += 1
                        meter.add(
                            result,
                            update=state.update,
                            epoch=order.place(state.update - 1)[0] + 1,
                            samples=samples,
                            learning_rate=state.optimizer.param_groups[0]["lr"],
                        )
                    if saver.due(state.update):
                        meter.flush()
                        saver.save(state)
                        meter.restart()
                meter.flush()
                saver.save(state)
                metrics = _finish(session, state)
            outcome = Outcome(
                status="finished", reason=ended, update=state.update, total_updates=total, metrics=metrics
            )
        except SessionOver as over:
            meter.flush()
            # Where the test was cut short, the model has its best weights already, but the state was saved before.
            saver.save(state)
            outcome = Outcome(
                status="paused",
                reason=over.reason,
                update=state.update,
                total_updates=total,
                metrics=_best_validation(session, state),
            )
        record.ended(outcome.status, outcome.reason, state.update, outcome.metrics)
    return outcome


@dataclass(frozen=True, kw_only=True)
class _Session:
    """What the steps of the loop share and none of them changes."""

    loaded: LoadedRecipe
    settings: Settings
    run: RunDirectory
    data: dict[str, Any]
    order: DataOrder
    device: torch.device
    stop: Stop
    record: Record


def _one_update(session: _Session, state: TrainingState) -> tuple[UpdateResult, int]:
    """Run update number `state.update`; returns its result and how many samples it had."""
    recipe, order, number = session.loaded.recipe, session.order, state.update
    assert session.settings.micro_batch is not None
    indices = order.indices(number)
    epoch, _ = order.place(number)
    schedule = part(recipe, "schedule", None)
    factor = schedule(number, order.updates_per_epoch, _total(session)) if schedule else 1.0
    for group, rate in zip(state.optimizer.param_groups, state.learning_rates, strict=True):
        group["lr"] = rate * factor

    def microbatches() -> Iterator[tuple[Any, int]]:
        collate = collate_of(recipe)
        for some in split(indices, session.settings.micro_batch or 1):
            batch = fetch(session.data["train"], collate, some, seed=session.loaded.seed, epoch=epoch)
            yield to_device(batch, session.device), len(some)

    seed_all(derive(session.loaded.seed, "update", number))
    result = update(
        state.model,
        state.optimizer,
        recipe.loss,
        microbatches(),
        samples=len(indices),
        arithmetic=state.arithmetic,
        clip_norm=part(recipe, "clip_norm", None),
    )
    return result, len(indices)


def _why_ended(session: _Session, state: TrainingState) -> str:
    """Why training is over; empty while it is not."""
    if _epoch_ended(session, state):
        return ""
    if out_of_patience(session.loaded.recipe, state.history):
        patience = part(session.loaded.recipe, "patience", None)
        return f"no better epoch in the last {patience}"
    return f"all {session.loaded.epochs} epochs" if state.update == _total(session) else ""


def _epoch_ended(session: _Session, state: TrainingState) -> bool:
    """Whether an epoch has ended that is not evaluated yet."""
    evaluated = len(state.history) * session.order.updates_per_epoch
    return "validation" in session.data and state.update == evaluated + session.order.updates_per_epoch


def _evaluate_epoch(session: _Session, state: TrainingState) -> None:
    """Validation metrics of the epoch that just ended; its weights are kept where they are the best so far."""
    epoch = len(state.history) + 1
    metrics, seconds = _evaluate(session, state, "validation")
    state.history.append({"epoch": epoch, "update": state.update, "metrics": metrics})
    best = best_entry(session.loaded.recipe, state.history) is state.history[-1]
    session.record.evaluated("validation", state.update, metrics, epoch=epoch, seconds=seconds, best=best)
    if best:
        _keep_weights(session, state, "best", metrics)


def _finish(session: _Session, state: TrainingState) -> dict[str, Any]:
    """The weights to use, and the metrics of the best ones on the test part."""
    metrics = _best_validation(session, state)
    _keep_weights(session, state, "light", metrics.get("validation", {}))
    if "test" in session.data:
        if metrics:
            try:
                load_light(session.run.best, state.model)
            except CheckpointError as error:
                session.record.note(f"the test metrics are of the last weights, not the best: {error.message}")
        metrics["test"], seconds = _evaluate(session, state, "test")
        epoch, _ = session.order.place(state.update - 1)
        session.record.evaluated("test", state.update, metrics["test"], epoch=epoch + 1, seconds=seconds, best=False)
    return metrics


def _evaluate(session: _Session, state: TrainingState, name: str) -> tuple[dict[str, Any], float]:
    assert session.settings.micro_batch is not None
    started = time.monotonic()
    metrics = evaluate(
        session.loaded,
        state.model,
        state.arithmetic,
        session.data[name],
        micro_batch=session.settings.micro_batch,
        device=session.device,
        stop=session.stop,
    )
    return metrics, time.monotonic() - started


def _keep_weights(session: _Session, state: TrainingState, kind: str, metrics: dict[str, Any]) -> None:
    started = time.monotonic()
    folder = {"best": session.run.best, "light": session.run.light}[kind]
    path = save_light(folder, state.model, {"update": state.update, "metrics": metrics})
    session.record.saved_light(path, state.update, time.monotonic() - started, kind)


def _best_validation(session: _Session, state: TrainingState) -> dict[str, Any]:
    best = best_entry(session.loaded.recipe, state.history)
    return {"validation": best["metrics"]} if best else {}


def _total(session: _Session) -> int:
    return session.loaded.epochs * session.order.updates_per_epoch
