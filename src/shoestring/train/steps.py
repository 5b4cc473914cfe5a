"""The steps of the loop, in the order in which it takes them."""

import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from shoestring.checkpoint import light
from shoestring.checkpoint.light import load_light, save_light
from shoestring.data.loading import Loader
from shoestring.data.order import DataOrder
from shoestring.data.seeding import derive, seed_all
from shoestring.engine.memory import Failure, HalfDoneError, attempted, free, with_room
from shoestring.engine.recovery import OutOfMemory, Recovering, forget
from shoestring.engine.state import TrainingState
from shoestring.engine.update import UpdateResult, update
from shoestring.errors import CheckpointError
from shoestring.recipe.contract import loss_at, part
from shoestring.recipe.options import LoadedRecipe
from shoestring.session.directory import RunDirectory
from shoestring.session.stop import Stop
from shoestring.train import room
from shoestring.train.evaluation import best_entry, evaluate, out_of_patience
from shoestring.train.meter import Meter
from shoestring.train.record import Record
from shoestring.train.saving import Saver


@dataclass(frozen=True, kw_only=True)
class Session:
    """What the steps share. None of them changes it; what training changes is the state."""

    loaded: LoadedRecipe
    run: RunDirectory
    data: dict[str, Any]
    order: DataOrder
    loader: Loader
    device: torch.device
    stop: Stop
    record: Record
    state: TrainingState
    saver: Saver
    meter: Meter
    training: Recovering
    evaluating: Recovering
    allow_inexact: bool
    keep_light: int = 0
    light_weights: str = "own"

    @property
    def total_updates(self) -> int:
        return self.loaded.epochs * self.order.updates_per_epoch


def why_ended(session: Session) -> str:
    """Why training is over; empty while it is not."""
    if epoch_ended(session):
        return ""
    if out_of_patience(session.loaded.recipe, session.state.history):
        patience = part(session.loaded.recipe, "patience", None)
        return f"no better epoch in the last {patience}"
    return f"all {session.loaded.epochs} epochs" if session.state.update == session.total_updates else ""


def epoch_ended(session: Session) -> bool:
    """Whether an epoch has ended that is not evaluated yet."""
    evaluated = len(session.state.history) * session.order.updates_per_epoch
    return "validation" in session.data and session.state.update == evaluated + session.order.updates_per_epoch


def evaluate_epoch(session: Session) -> None:
    """Validation metrics of the epoch that just ended; its weights are kept where they are the best so far."""
    session.meter.flush()
    history = session.state.history
    metrics, seconds = _evaluate(session, "validation")
    history.append({"epoch": len(history) + 1, "update": session.state.update, "metrics": metrics})
    best = best_entry(session.loaded.recipe, history) is history[-1]
    session.record.evaluated(
        "validation", session.state.update, metrics, epoch=len(history), seconds=seconds, best=best
    )
    if best:
        _keep_weights(session, "best", metrics)
    if session.keep_light:
        _keep_weights(session, "epoch", metrics)
        light.keep_newest(session.run.light, session.keep_light)
    session.meter.restart()


def one_update(session: Session) -> None:
    """The next update, in microbatches that fit; where the optimizer's own step does not fit, back to a checkpoint."""
    state, recipe, order = session.state, session.loaded.recipe, session.order
    number = state.update
    samples = len(order.indices(number))
    loss = loss_at(recipe, number, order.updates_per_epoch, session.total_updates)
    _set_learning_rates(session)

    def attempt(micro_batch: int) -> UpdateResult:
        seed_all(derive(session.loaded.seed, "update", number))
        return update(
            state.model,
            state.optimizer,
            loss,
            session.loader.microbatches(number, micro_batch),
            samples=samples,
            arithmetic=state.arithmetic,
            clip_norm=part(recipe, "clip_norm", None),
            run=state.captured,
        )

    failure = ""
    with session.stop.deadline.measure("update"):
        try:
            result, micro_batch = session.training.run(attempt, state.fit.micro_batch)
        except HalfDoneError as error:
            failure = error.message
    if failure:
        # Outside of the handler, where nothing holds the failed attempt's tensors any more.
        _go_back(session, failure)
        return
    state.fit = replace(state.fit, micro_batch=micro_batch)
    state.update += 1
    session.meter.add(
        result,
        update=state.update,
        epoch=order.place(number)[0] + 1,
        samples=samples,
        learning_rate=state.optimizer.param_groups[0]["lr"],
    )


def save_meanwhile(session: Session) -> None:
    """Begin a save. Where there is no memory for the copy training goes on: the checkpoints before are still there."""
    session.meter.flush()
    done = attempted(lambda: session.saver.begin(session.state))
    if isinstance(done, Failure):
        free()
        session.saver.put_off()
        why = f"no memory for a copy of the state: {done.said}"
        session.record.unsaved(session.state.update, "checkpoint", why)
    session.meter.restart()


def save_now(session: Session) -> None:
    """Save and wait for it: the last save of a session must succeed."""
    session.meter.flush()
    with_room(lambda: session.saver.save(session.state), "a checkpoint")


def finish(session: Session) -> dict[str, Any]:
    """The weights to use, and the metrics of the best ones on the test part."""
    state, record = session.state, session.record
    metrics, best = best_validation(session), best_entry(session.loaded.recipe, state.history)
    _keep_weights(session, "light", metrics.get("validation", {}))
    if "test" in session.data:
        if best:
            try:
                kept = load_light(session.run.best, state.model).get("update")
                if kept != best["update"]:
                    record.note(f"the test metrics are of the weights of update {kept}, the best ones saved")
            except CheckpointError as error:
                record.note(f"the test metrics are of the last weights, not the best: {error.message}")
        metrics["test"], seconds = _evaluate(session, "test")
        epoch, _ = session.order.place(state.update - 1)
        record.evaluated("test", state.update, metrics["test"], epoch=epoch + 1, seconds=seconds, best=False)
    return metrics


def best_validation(session: Session) -> dict[str, Any]:
    """The validation metrics of the best epoch so far."""
    best = best_entry(session.loaded.recipe, session.state.history)
    return {"validation": best["metrics"]} if best else {}


def _set_learning_rates(session: Session) -> None:
    """By the schedule, a function of the update's number."""
    state, schedule = session.state, part(session.loaded.recipe, "schedule", None)
    factor = schedule(state.update, session.order.updates_per_epoch, session.total_updates) if schedule else 1.0
    for group, rate in zip(state.optimizer.param_groups, state.learning_rates, strict=True):
        group["lr"] = rate * factor


def _go_back(session: Session, failure: str) -> None:
    """To the last checkpoint, with less to fit into memory than led here: weights may be half updated."""
    state, recipe = session.state, session.loaded.recipe
    session.meter.flush()
    forget(state.model, state.optimizer, state.arithmetic)
    if state.captured:
        state.captured.forget()
    free()
    at, micro_batch = state.update, state.fit.micro_batch
    if not (done := room.smaller_step(state, recipe)):
        raise room.does_not_fit(state, failure, session.run.plan(), session.device)
    learnt = state.fit
    session.saver.restore(state, allow_inexact=session.allow_inexact)
    state.fit = learnt
    room.apply(state, recipe)
    event = OutOfMemory(failure=failure, micro_batch=micro_batch, done=done)
    session.record.out_of_memory("optimizer step", event, update=at, back_to=state.update)
    session.meter.restart()


def _evaluate(session: Session, name: str) -> tuple[dict[str, Any], float]:
    """Metrics on a part of the data, and the seconds that they took."""
    state, started = session.state, time.monotonic()

    def attempt(micro_batch: int) -> dict[str, Any]:
        return evaluate(
            session.loaded,
            state.model,
            state.arithmetic,
            session.data[name],
            micro_batch=micro_batch,
            device=session.device,
            stop=session.stop,
            workers=session.loader.workers,
        )

    size = state.fit.evaluation_batch or state.fit.micro_batch
    metrics, fitted = session.evaluating.run(attempt, size)
    if fitted < size:
        state.fit = replace(state.fit, evaluation_batch=fitted)
    return metrics, time.monotonic() - started


def _keep_weights(session: Session, kind: str, metrics: dict[str, Any]) -> None:
    """Those of the `best` epoch or of any `epoch`, which training can do without, or in `light/` what it was for."""
    started, number = time.monotonic(), session.state.update
    own = {"best": session.run.best, "epoch": light.of_update(session.run.light, number), "light": session.run.light}
    folder = own[kind]
    facts = {"update": number, "metrics": metrics}
    try:
        path = with_room(
            lambda: save_light(folder, session.state.model, facts, rounded=session.light_weights), "the weights"
        )
    except CheckpointError as error:
        if kind == "light":
            raise
        session.record.unsaved(number, kind, str(error))
        return
    session.record.saved_light(path, number, time.monotonic() - started, kind)
