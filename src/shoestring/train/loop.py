"""How training works here, from top to bottom.

    restore the newest checkpoint, or save the first
    until every epoch is done, or patience is:
        after an epoch: evaluate, keep the best weights
        else: one update
        save when it is due
    evaluate the best weights on the test part
    where memory runs out: the same again in smaller pieces
    at any time: stop when asked, saved; go on from there in another session

Everything it needs is public and stands alone: the data order, the update, the deadline, the checkpoint store.
"""

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch

from shoestring.checkpoint.light import load_light, save_light
from shoestring.checkpoint.store import Store
from shoestring.errors import CheckpointError, RunError
from shoestring.recipe import LoadedRecipe, part
from shoestring.session.directory import RunDirectory
from shoestring.session.stop import SessionOver, Stop
from shoestring.settings import Settings
from shoestring.train import autotuning, room
from shoestring.train.determinism import deterministic
from shoestring.train.environment import device_name, environment
from shoestring.train.evaluation import best_entry, evaluate, out_of_patience
from shoestring.train.failure import not_finite
from shoestring.train.loading import Loader
from shoestring.train.memory import Failure, HalfDoneError, attempted, free, with_room
from shoestring.train.meter import Meter
from shoestring.train.order import DataOrder
from shoestring.train.precision import IN_A_ROW, remark
from shoestring.train.record import Record
from shoestring.train.recovery import OutOfMemory, Recovering, forget
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

    Raises ShoestringError where the run cannot go on; state.json then says that it failed and why. Raises SessionOver
    where the session ends before the data is there; state.json then says that it is paused.
    """
    assert settings.micro_batch is not None
    with deterministic(), Record(run, loaded, stop.deadline, target=target) as record:
        with stop.at_once():
            data = loaded.data()
            here = environment(settings, device, loaded)
            state = build(loaded, settings, device)
        order = DataOrder(samples=len(data["train"]), effective_batch=loaded.effective_batch, seed=loaded.seed)
        total = loaded.epochs * order.updates_per_epoch
        record.expect(total)
        loader = Loader(loaded.recipe, data["train"], order, seed=loaded.seed, device=device, workers=settings.workers)
        session = _Session(
            loaded=loaded,
            settings=settings,
            run=run,
            data=data,
            order=order,
            loader=loader,
            device=device,
            stop=stop,
            record=record,
            training=room.recovering_update(state, loaded.recipe, run, device, record),
            evaluating=room.recovering_evaluation(state, record),
        )
        store = Store(
            run.checkpoints, keep=settings.keep_checkpoints, limit_bytes=disk_bytes, on_damaged=record.damaged
        )
        saver = Saver(store, settings, record, stop.deadline, here)
        meter = Meter(
            record.events,
            record.progress,
            stop.deadline,
            not_finite=partial(_not_finite, session, saver),
            in_a_row=IN_A_ROW[state.arithmetic.name],
            loader=loader,
            note=record.note,
        )
        restored = saver.restore(state, allow_inexact=allow_inexact)
        room.apply(state, loaded.recipe)
        micro_batch = state.fit.micro_batch
        record.started(state.update, device=device_name(device), settings=settings.replace(micro_batch=micro_batch))
        if not restored:
            # Before the first update: a disk that cannot hold a checkpoint is found out now, not in an hour.
            with_room(lambda: saver.save(state), "a checkpoint")
        if trains_batch_norm(state.model) and micro_batch < loaded.effective_batch:
            record.note(
                f"BatchNorm takes its statistics from each microbatch of {micro_batch}, not from the "
                f"effective batch of {loaded.effective_batch}: another microbatch would learn a little differently"
            )
        if settings.cudnn_benchmark and not autotuning.autotunes(settings, loaded.recipe):
            record.note(autotuning.NOTE)
        if said := remark(state.arithmetic.name, device):
            record.note(said)
        try:
            with record.progress, saver, loader:
                while not (ended := _why_ended(session, state)):
                    stop.check()
                    if _epoch_ended(session, state):
                        meter.flush()
                        _evaluate_epoch(session, state)
                        meter.restart()
                    else:
                        with stop.deadline.measure("update"):
                            done = _one_update(session, state)
                        if isinstance(done, Failure):
                            meter.flush()
                            _go_back(session, state, saver, done.said, allow_inexact=allow_inexact)
                            meter.restart()
                            continue
                        result, samples = done
                        state.update += 1
                        meter.add(
                            result,
                            update=state.update,
                            epoch=order.place(state.update - 1)[0] + 1,
                            samples=samples,
                            learning_rate=state.optimizer.param_groups[0]["lr"],
                        )
                    if saver.due(state.update):
                        meter.flush(state.model)
                        _save_meanwhile(session, state, saver)
                        meter.restart()
                meter.flush(state.model)
                with_room(lambda: saver.save(state), "a checkpoint")
                metrics = _finish(session, state)
            outcome = Outcome(
                status="finished", reason=ended, update=state.update, total_updates=total, metrics=metrics
            )
        except SessionOver as over:
            meter.flush(state.model)
            # Where the test was cut short, the model has its best weights already, but the state was saved before.
            with_room(lambda: saver.save(state), "a checkpoint")
            outcome = Outcome(
                status="paused",
                reason=over.reason,
                update=state.update,
                total_updates=total,
                metrics=_best_validation(session, state),
            )
            if over.error:
                raise over.error from over
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
    loader: Loader
    device: torch.device
    stop: Stop
    record: Record
    training: Recovering
    evaluating: Recovering


def _one_update(session: _Session, state: TrainingState) -> tuple[UpdateResult, int] | Failure:
    """Run update number `state.update`, in microbatches that fit; returns its result and how many samples it had.

    A failure is one after which weights may be half updated.
    """
    recipe, order, number = session.loaded.recipe, session.order, state.update
    samples = len(order.indices(number))
    schedule = part(recipe, "schedule", None)
    factor = schedule(number, order.updates_per_epoch, _total(session)) if schedule else 1.0
    for group, rate in zip(state.optimizer.param_groups, state.learning_rates, strict=True):
        group["lr"] = rate * factor

    def attempt(micro_batch: int) -> UpdateResult:
        seed_all(derive(session.loaded.seed, "update", number))
        return update(
            state.model,
            state.optimizer,
            recipe.loss,
            session.loader.microbatches(number, micro_batch),
            samples=samples,
            arithmetic=state.arithmetic,
            clip_norm=part(recipe, "clip_norm", None),
        )

    try:
        result, micro_batch = session.training.run(attempt, state.fit.micro_batch)
    except HalfDoneError as error:
        return Failure(error.message)
    state.fit = replace(state.fit, micro_batch=micro_batch)
    return result, samples


def _go_back(session: _Session, state: TrainingState, saver: Saver, failure: str, *, allow_inexact: bool) -> None:
    """To the last checkpoint, with less to fit into memory than led here."""
    forget(state.model, state.optimizer, state.arithmetic)
    free()
    at, micro_batch = state.update, state.fit.micro_batch
    if not (done := room.smaller_step(state, session.loaded.recipe)):
        raise room.does_not_fit(state, failure, session.run.plan(), session.device)
    learnt = state.fit
    saver.restore(state, allow_inexact=allow_inexact)
    state.fit = learnt
    room.apply(state, session.loaded.recipe)
    event = OutOfMemory(failure=failure, micro_batch=micro_batch, done=done)
    session.record.out_of_memory("optimizer step", event, update=at, back_to=state.update)


def _save_meanwhile(session: _Session, state: TrainingState, saver: Saver) -> None:
    """Begin a save. Where there is no memory for the copy training goes on: the checkpoints before are still there."""
    done = attempted(lambda: saver.begin(state))
    if isinstance(done, Failure):
        free()
        saver.put_off()
        session.record.unsaved(state.update, "checkpoint", f"no memory for a copy of the state: {done.said}")


def _not_finite(session: _Session, saver: Saver, update: int, what: str, value: float) -> RunError:
    """The error for an update without finite numbers, whose samples are kept."""
    order, settings = session.order, session.settings
    return not_finite(
        session.run,
        update=update,
        what=what,
        value=value,
        samples=order.indices(update - 1),
        good=saver.newest(),
        facts={"epoch": order.place(update - 1)[0] + 1, "seed": order.seed, "precision": settings.precision},
    )


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
    metrics, best = _best_validation(session, state), best_entry(session.loaded.recipe, state.history)
    _keep_weights(session, state, "light", metrics.get("validation", {}))
    if "test" in session.data:
        if best:
            try:
                kept = load_light(session.run.best, state.model).get("update")
                if kept != best["update"]:
                    session.record.note(f"the test metrics are of the weights of update {kept}, the best ones saved")
            except CheckpointError as error:
                session.record.note(f"the test metrics are of the last weights, not the best: {error.message}")
        metrics["test"], seconds = _evaluate(session, state, "test")
        epoch, _ = session.order.place(state.update - 1)
        session.record.evaluated("test", state.update, metrics["test"], epoch=epoch + 1, seconds=seconds, best=False)
    return metrics


def _evaluate(session: _Session, state: TrainingState, name: str) -> tuple[dict[str, Any], float]:
    started = time.monotonic()

    def attempt(micro_batch: int) -> dict[str, Any]:
        return evaluate(
            session.loaded,
            state.model,
            state.arithmetic,
            session.data[name],
            micro_batch=micro_batch,
            device=session.device,
            stop=session.stop,
        )

    size = state.fit.evaluation_batch or state.fit.micro_batch
    metrics, fitted = session.evaluating.run(attempt, size)
    if fitted < size:
        state.fit = replace(state.fit, evaluation_batch=fitted)
    return metrics, time.monotonic() - started


def _keep_weights(session: _Session, state: TrainingState, kind: str, metrics: dict[str, Any]) -> None:
    started = time.monotonic()
    folder = {"best": session.run.best, "light": session.run.light}[kind]
    facts = {"update": state.update, "metrics": metrics}
    try:
        path = with_room(lambda: save_light(folder, state.model, facts), "the weights")
    except CheckpointError as error:
        if kind == "light":
            raise
        session.record.unsaved(state.update, kind, str(error))
        return
    session.record.saved_light(path, state.update, time.monotonic() - started, kind)


def _best_validation(session: _Session, state: TrainingState) -> dict[str, Any]:
    best = best_entry(session.loaded.recipe, state.history)
    return {"validation": best["metrics"]} if best else {}


def _total(session: _Session) -> int:
    return session.loaded.epochs * session.order.updates_per_epoch
