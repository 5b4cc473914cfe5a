"""The outcome of a training session, and the command for the next step."""

from collections.abc import Sequence
from pathlib import Path

from shoestring.answers import metrics
from shoestring.answers.document import Bar, Document, Element, Inline, Metrics, Paragraph, Section, Span
from shoestring.answers.values import count, share
from shoestring.base import shell
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.stored import START_AGAIN
from shoestring.training.session.outcome import Outcome

_WITHOUT_NAME = "weights of the best epoch"  # in a state of an earlier version


def document(outcome: Outcome, recipe: str, run: Path) -> Document:
    """Return the outcome of the session that trained `recipe` in the directory `run`."""
    sentence = Span(f"{outcome.status}: {outcome.reason}", "strong")
    return _document(outcome, sentence, [Paragraph(_next(outcome, recipe, run), can_wrap=False)])


def without_command(outcome: Outcome) -> Document:
    """Return an outcome for where neither the recipe nor the directory is known."""
    return _document(outcome, f"{outcome.status} at {_position(outcome)}: {outcome.reason}", [])


def _document(outcome: Outcome, sentence: Inline, following: Sequence[Element]) -> Document:
    pause = " Run the cell again to go on." if outcome.status == "paused" else ""
    progress = min(1.0, outcome.update / outcome.total_updates) if outcome.total_updates else 0.0
    state = Paragraph(f"{outcome.status.capitalize()}: {outcome.reason}.{pause}")
    labels = {"validation": "validation, best epoch", "test": f"test, {outcome.test_weights or _WITHOUT_NAME}"}
    measured = [metrics.part(labels.get(name, name), values) for name, values in outcome.metrics.items()]
    return Document(
        title="Training",
        status=outcome.status,
        subtitle=f"{_position(outcome)} · {share(outcome.update, outcome.total_updates)}",
        sentences=[sentence],
        content=[
            Section("", [state, Bar([progress], outcome.status)], is_extra=True),
            *([Metrics(measured)] if measured else []),
            *following,
        ],
    )


def _position(outcome: Outcome) -> str:
    return f"update {count(outcome.update)} of {count(outcome.total_updates)}"


def _next(outcome: Outcome, recipe: str, run: Path) -> str:
    if outcome.status == "finished":
        return f"{_position(outcome)}; create the report: {shell.join(['shoestring', 'report', run])}"
    if not RunDirectory(run).plan_file.exists():  # which has the options of the run
        return START_AGAIN
    return f"{_position(outcome)}; continue: {shell.join(['shoestring', 'train', recipe, '--run', run])}"
