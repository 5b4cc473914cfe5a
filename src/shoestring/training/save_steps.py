"""The steps that write or load a checkpoint."""

from shoestring.techniques.fallbacks import Phase
from shoestring.training import oom
from shoestring.training.checkpoint.presence import gone_error
from shoestring.training.engine.memory import Failure, free_unused_memory
from shoestring.training.engine.recovery import OutOfMemory, discard_attempt
from shoestring.training.processes.steps import in_turn
from shoestring.training.training_session import TrainingSession


def save_if_due(session: TrainingSession) -> None:
    """Begin a save in the background if one is due, also at the end of an epoch that is evaluated."""
    state, saver = session.state, session.saver
    if saver.due(state.update) or (saver.retains(state) and not session.epoch_ended):
        save_in_background(session)


def save_in_background(session: TrainingSession) -> None:
    """Begin a save in the background. Without memory for the copy training continues: earlier checkpoints remain.

    With `save=none` nothing is saved.
    """
    if session.request.settings.save == "none":
        return
    session.reports.flush()
    result = session.saver.begin(session.state)
    if isinstance(result, Failure):
        free_unused_memory()
        session.saver.postpone()
        reason = f"out of memory while copying the state: {result.message}"
        session.record.unsaved(session.state.update, "checkpoint", reason)
    session.reports.restart()


def save_now(session: TrainingSession) -> None:
    """Save and wait until the checkpoint is written: the last save of a session must succeed."""
    session.reports.flush()
    session.saver.save(session.state)


def save_end(session: TrainingSession) -> None:
    """Save the state in which training has ended; with `save=none` only the weights are left."""
    if session.request.settings.save == "yes":
        save_now(session)


def return_to_checkpoint(session: TrainingSession, phase: Phase, failure: str) -> None:
    """Return to the last checkpoint with smaller sizes, since weights may be partly updated.

    Call it outside of the handler of the exception, which holds the tensors of the failed attempt.
    """
    state, request = session.state, session.request
    session.reports.flush()
    discard_attempt(state.model, state.optimizer, state.mixed_precision)
    failed_at, micro_batch = state.update, state.sizes.micro_batch
    step = oom.fallback(phase, state, request, failure)
    state.release()
    free_unused_memory()
    state.resize(step.sizes)
    if not _restore(session):
        raise gone_error(request.run.checkpoints)
    session.processes.require_equal_weights(state.model, state.update)
    event = OutOfMemory(failure=failure, micro_batch=micro_batch, action=step.description)
    session.record.out_of_memory(phase, event, update=failed_at, back_to=state.update)
    session.reports.restart()


@in_turn
def _restore(session: TrainingSession) -> bool:
    return session.saver.restore(session.state, allow_inexact=session.request.allow_inexact)
