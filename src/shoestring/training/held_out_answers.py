"""The answers of a model to held-out prompts before training and after each epoch, which the report shows side by side.

They are for people: nothing of the run depends on them, so what prevents them is a note and not an error.
"""

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from shoestring.base.errors import DataError, UsageError
from shoestring.base.units import count_text, plural, seconds_text
from shoestring.training.engine.memory import Failure, NoMemoryError
from shoestring.training.processes.steps import with_whole_model
from shoestring.training.session.stop import SessionOver
from shoestring.training.training_session import TrainingSession
from shoestring.training.undisturbed import compute_undisturbed
from shoestring.training.weights import weights_for_use

_KIND = "answers"
_MOST_CHARACTERS = 4000
"""Of a text that is recorded."""
_MOST_BYTES = 500_000
"""Of the rows of one event: less than the end of a record in which its last event is searched."""


def answer_held_out_prompts(session: TrainingSession) -> None:
    """Record the recipe's `answers` if an epoch has just ended, or none has begun, and they are not recorded yet.

    The model and all random numbers are as before afterwards. Answers that do not fit into the memory, or into the rest
    of the session, are left out with a note.

    Raises SessionOver if the session has to stop, and UsageError if `answers` returns something else than rows.
    """
    state, request = session.state, session.request
    if request.loaded is None or request.loaded.parts.evaluation.answers is None or not state.at_epoch_end:
        return
    if session.is_discarded:
        return
    if not session.processes.has_whole_weights:
        if not state.update:
            session.record.note("the held-out prompts are not answered: the weights are divided among the GPUs")
        return
    session.reports.flush()
    _answer_once(session)
    session.reports.restart()


@with_whole_model
def _answer_once(session: TrainingSession) -> None:
    update, record, stop = session.state.update, session.record, session.request.stop
    earlier_seconds = record.answer_seconds()
    if update in earlier_seconds:
        return
    stop.check()
    deadline = stop.deadline
    if deadline.startup_seconds is None:
        deadline.startup_seconds = deadline.elapsed()  # answering is not a part of every start
    expected, remaining = max(earlier_seconds.values(), default=0.0), deadline.remaining()
    if remaining is not None and expected > (available := remaining - deadline.stopping_seconds()):
        record.note(
            f"the held-out prompts are not answered after update {count_text(update)}: that would take "
            f"{seconds_text(expected)}, and {seconds_text(max(0.0, available))} of the session remain"
        )
        return
    started_at = time.monotonic()
    epoch = session.state.epochs_done
    try:
        rows = _compute(session)
    except SessionOver as over:
        if deadline.reached():  # another attempt could use up another session, so there is none
            seconds = time.monotonic() - started_at
            record.add_answers(update, [], epoch=epoch, seconds=seconds, skipped=over.reason)
        raise
    seconds = time.monotonic() - started_at
    if isinstance(rows, Failure):
        skipped = f"out of memory: {rows.message}"
        record.add_answers(update, [], epoch=epoch, seconds=seconds, skipped=skipped)
        record.note(f"the held-out prompts are not answered after update {count_text(update)}: {skipped}")
        return
    recorded_rows = _recorded(rows)
    if len(recorded_rows) < len(rows):
        record.note(
            f"the answers to {plural(len(rows) - len(recorded_rows), 'held-out prompt')} are not recorded: too long"
        )
    record.add_answers(update, recorded_rows, epoch=epoch, seconds=seconds)


def _compute(session: TrainingSession) -> list[dict[str, Any]] | Failure:
    """Return the rows, or a Failure without memory for them."""
    answers = session.request.recipe.parts.evaluation.answers
    assert answers is not None
    try:
        return compute_undisturbed(
            session,
            _KIND,
            lambda: as_rows(_polled(answers(session.state.model), session)),
            weights=weights_for_use(session),
        )
    except (NoMemoryError, DataError) as error:  # of the averaged weights, or of a file of prompts
        return Failure(error.message)


def _polled(rows: Any, session: TrainingSession) -> Iterable[Any]:
    """Yield the rows; between two of them the session may end, also where it cannot be interrupted."""
    if isinstance(rows, Mapping | str) or not isinstance(rows, Iterable):
        raise UsageError(f"answers() returned a {type(rows).__name__}", hint=_HINT)
    for row in rows:
        session.request.stop.check()
        yield row


_HINT = 'return a row for each prompt: {"prompt": text, "answer": text, "reference": text or None, "stopped": bool}'


def as_rows(rows: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the rows as JSON, with texts of at most a few thousand characters.

    Raises UsageError for a row without the texts `prompt` and `answer`.
    """
    checked = []
    for row in rows:
        if not isinstance(row, Mapping) or not all(isinstance(row.get(name), str) for name in ("prompt", "answer")):
            raise UsageError(f"answers() returned the row {row!r:.200}", hint=_HINT)
        reference, stopped = row.get("reference"), row.get("stopped")
        checked.append(
            {
                "prompt": _shortened(row["prompt"]),
                "answer": _shortened(row["answer"]),
                "reference": None if reference is None else _shortened(str(reference)),
                "stopped": None if stopped is None else bool(stopped),
            }
        )
    return checked


def _recorded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return as many rows as an event has space for."""
    size, recorded_rows = 0, []
    for row in rows:
        size += len(json.dumps(row))
        if size > _MOST_BYTES:
            break
        recorded_rows.append(row)
    return recorded_rows


def _shortened(text: str) -> str:
    text = text.encode(errors="replace").decode()  # half a character would make the event unreadable
    unwritten = len(text) - _MOST_CHARACTERS
    return f"{text[:_MOST_CHARACTERS]} ... ({count_text(unwritten)} more characters)" if unwritten > 0 else text
