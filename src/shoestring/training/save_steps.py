"""The steps that write or load a checkpoint. All ranks take them together, and the first one writes."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from shoestring.techniques.fallbacks import Phase
from shoestring.training import oom
from shoestring.training.checkpoint.presence import gone_error
from shoestring.training.engine.memory import (
    Failure,
    catch_out_of_memory,
    free_unused_memory,
    no_memory_error,
    retry_with_freed_memory,
)
from shoestring.training.engine.parallel.ranks import Ranks
from shoestring.training.engine.parallel.replicas import require_equal
from shoestring.training.engine.recovery import OutOfMemory, discard_attempt
from shoestring.training.training_session import TrainingSession


def save_if_due(session: TrainingSession) -> None:
    """Begin a save in the background if one is due, also at the end of an epoch that is evaluated."""
    ranks, saver = session.request.ranks, session.saver
    due = ranks.call_and_gather(lambda: saver.due(session.state.update), lambda is_due: [is_due], count=1)[1]
    if any(is_due for (is_due,) in due) or (saver.retains(session.state) and not session.epoch_ended):
        save_in_background(session)


def save_in_background(session: TrainingSession) -> None:
    """Begin a save in the background. Without memory for the copy training continues: earlier checkpoints remain.

    With `save=none` nothing is saved.
    """
    if session.request.settings.save == "none":
        return
    session.reports.flush()
    with _equal_replicas(session) as ranks:
        result = ranks.call(lambda: catch_out_of_memory(lambda: session.saver.begin(session.state)))
    if isinstance(result, Failure):
        free_unused_memory()
        session.saver.postpone()
        reason = f"out of memory while copying the state: {result.message}"
        session.record.unsaved(session.state.update, "checkpoint", reason)
    session.reports.restart()


def save_now(session: TrainingSession) -> None:
    """Save and wait until the checkpoint is written: the last save of a session must succeed."""
    session.reports.flush()
    with _equal_replicas(session) as ranks:
        if session.state.fully_sharded:
            saved = ranks.call(lambda: session.saver.save(session.state))
            if isinstance(saved, Failure):
                raise no_memory_error("saving a checkpoint", saved.message)
            return
        ranks.call_first(
            lambda: retry_with_freed_memory(lambda: session.saver.save(session.state), "saving a checkpoint")
        )


def save_end(session: TrainingSession) -> None:
    """Save the state in which training has ended; with `save=none` only the weights are left."""
    if session.request.settings.save == "yes":
        save_now(session)


@contextmanager
def _equal_replicas(session: TrainingSession) -> Iterator[Ranks]:
    """Compare the weights of all ranks, then return a context in which the first one has the whole state to be saved.

    Raises RunError on all ranks if their weights differ.
    """
    state, ranks = session.state, session.request.ranks
    require_equal(state.model, ranks, state.update)
    session.saver.settle()
    is_needed = any(needed for (needed,) in ranks.gather([session.saver.needs_save(state)]))
    with state.collected(ranks) if is_needed else nullcontext():
        yield ranks


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
    if not request.ranks.call_in_turn(lambda: session.saver.restore(state, allow_inexact=request.allow_inexact)):
        raise gone_error(request.run.checkpoints)
    require_equal(state.model, request.ranks, state.update)
    event = OutOfMemory(failure=failure, micro_batch=micro_batch, action=step.description)
    session.record.out_of_memory(phase, event, update=failed_at, back_to=state.update)
    session.reports.restart()
