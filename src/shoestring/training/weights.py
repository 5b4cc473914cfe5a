"""The weights to use: those that are evaluated, and those in `best/` and `light/`."""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from shoestring.base.errors import CheckpointError
from shoestring.training.checkpoint import light
from shoestring.training.checkpoint.light import UNVERIFIED, read_light, save_light
from shoestring.training.checkpoint.presence import GoneError
from shoestring.training.engine.memory import retry_with_freed_memory
from shoestring.training.processes.steps import by_first
from shoestring.training.training_session import TrainingSession


@contextmanager
def weights_for_use(session: TrainingSession) -> Iterator[None]:
    """Return a context in which the model has the averaged weights, if the run averages them."""
    averages = session.state.averages
    with ExitStack() as stack:
        if averages:
            retry_with_freed_memory(lambda: stack.enter_context(averages.in_model()), "using the averaged weights")
        yield


def save_weights(session: TrainingSession, kind: str, folder: Path, metrics: dict[str, Any]) -> None:
    """Save weights alone. Only a failure for the final ones (`kind` "light") is an error.

    Raises GoneError if the run's directory is not there any more.
    """
    session.saver.require_present()
    state, started_at = session.state, time.monotonic()
    weights = session.processes.whole_weights(state)
    try:
        path = _write(session, folder, {"update": state.update, "metrics": metrics}, weights)
    except CheckpointError as error:
        if kind == "light":
            raise
        session.record.unsaved(state.update, kind, str(error))
        return
    if path is not None:
        session.record.saved_light(path, state.update, time.monotonic() - started_at, kind)


@by_first
def _write(
    session: TrainingSession, folder: Path, facts: dict[str, Any], weights: Mapping[str, torch.Tensor] | None
) -> Path:
    rounded = session.request.settings.light_weights or "own"
    run, model = session.request.identity, session.state.model
    save = partial(save_light, folder, model, facts, rounded=rounded, weights=weights, run=run)
    return retry_with_freed_memory(save, "saving the weights")


def save_best(session: TrainingSession, metrics: dict[str, Any]) -> None:
    """Save the weights, which are the best so far."""
    save_weights(session, "best", session.request.run.best, metrics)


BEST_WEIGHTS, LAST_WEIGHTS = "weights of the best epoch", "last weights"


def load_best(session: TrainingSession, best_update: int, subject: str) -> str:
    """Load the best weights, which were saved after `best_update`, and return which weights the model has then.

    A note that begins with `subject` says so if those could not be saved or are damaged.
    """
    record, folder = session.record, session.request.run.best
    require_best(session)
    try:
        weights = read_light(folder, session.state.model)
    except CheckpointError as error:
        record.note(f"{subject} the {LAST_WEIGHTS}, not the best: {error.message}")
        return LAST_WEIGHTS
    if not weights.verified:
        record.note(UNVERIFIED.format(folder=folder))
    update = weights.facts.get("update")
    if update == best_update:
        return BEST_WEIGHTS
    saved_weights = f"weights of update {update}, the best that were saved"
    record.note(f"{subject} the {saved_weights}")
    return saved_weights


def require_best(session: TrainingSession) -> None:
    """Raise GoneError if the best weights were saved and are not there any more: no other copy of them exists.

    `allow_inexact` continues without them.
    """
    folder = session.request.run.best
    try:
        is_present = light.has_weights(folder)
    except OSError:
        return  # reading them reports it
    if is_present or session.request.allow_inexact or not session.record.was_saved("best"):
        return
    raise GoneError(
        f"the best weights, {folder}, are gone: they were deleted or moved",
        hint="put them back and train again; to test the last weights instead, add --allow-inexact",
    )
