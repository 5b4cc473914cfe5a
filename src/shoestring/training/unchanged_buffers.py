"""An evaluation leaves the buffers of a model as they were, where several processes may divide its batches."""

from collections.abc import Iterator
from contextlib import contextmanager

from shoestring.training.engine.buffers import BufferBackup
from shoestring.training.engine.memory import Failure, no_memory_error
from shoestring.training.processes.steps import agreed
from shoestring.training.training_session import TrainingSession


@contextmanager
def unchanged_buffers(session: TrainingSession) -> Iterator[None]:
    """Return a context after which the buffers are restored, if the run has several logical shards, of which each
    process evaluates other batches, or none, or if the recipe has `after_update`, for which a loss may fill buffers.
    """
    if session.request.shards.count == 1 and session.request.recipe.parts.learning.after_update is None:
        yield
        return
    backup = BufferBackup(session.state.model, complete=True)
    saved = _save(session, backup)
    if isinstance(saved, Failure):
        raise no_memory_error("copying the model's buffers for an evaluation", saved.message)
    try:
        yield
    finally:
        backup.restore()


@agreed
def _save(_: TrainingSession, backup: BufferBackup) -> None:
    backup.save()
