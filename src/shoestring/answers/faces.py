"""Answers as text and as HTML: the document that each class of answer is, and the renderer of each face."""

from collections.abc import Callable, Mapping
from typing import Any

from shoestring.answers import (
    check,
    comparison,
    cross_validation,
    estimate,
    evaluated,
    exported,
    inference,
    loaded,
    measurement,
    outcome,
    plan,
    predictions,
)
from shoestring.answers.document import Document
from shoestring.answers.rehearsal import document as rehearsal
from shoestring.answers.rehearsal import prepared as prepared_rehearsal
from shoestring.answers.renderers.notebook import document as notebook
from shoestring.answers.renderers.terminal import document as terminal
from shoestring.answers.watch import document as watched
from shoestring.answers.watch.screen import Screen
from shoestring.answers.watch.view import View
from shoestring.planning.comparison import Comparison
from shoestring.planning.estimation import Estimate
from shoestring.planning.inference import InferencePlan
from shoestring.planning.plan import Plan
from shoestring.runs.check.preflight import CheckResult
from shoestring.runs.evaluate import Evaluation
from shoestring.runs.export.export import Export
from shoestring.runs.folds.outcome import CrossValidation
from shoestring.runs.measurement.measurement import Measurement
from shoestring.runs.predict.loaded import LoadedModel
from shoestring.runs.predict.predict import Predictions
from shoestring.runs.rehearse.prepared import PreparedRehearsal
from shoestring.runs.rehearse.rehearsal import Rehearsal
from shoestring.training.session.outcome import Outcome

_DOCUMENTS: Mapping[type, Callable[[Any], Document]] = {
    Plan: plan.document,
    Comparison: comparison.document,
    Estimate: estimate.document,
    InferencePlan: inference.document,
    CheckResult: check.document,
    CrossValidation: cross_validation.document,
    Outcome: outcome.without_command,
    Evaluation: evaluated.document,
    Export: exported.document,
    Measurement: measurement.document,
    Predictions: predictions.document,
    LoadedModel: loaded.document,
    View: watched.document,
    Rehearsal: rehearsal.document,
    PreparedRehearsal: prepared_rehearsal.document,
}
_TEXTS: Mapping[type, Callable[[Any], Document | Screen]] = {
    **_DOCUMENTS,
    Plan: lambda answer: plan.summary(answer, full="shoestring plan --full"),
    View: Screen,
    Rehearsal: lambda answer: rehearsal.summary(answer, full=""),
}
"""`print` shows the summary of a plan and of a rehearsal, since a terminal cannot fold, and a run as `shoestring watch`
does."""


def html(answer: object) -> str:
    """Return the HTML of an answer in a notebook. Raises TypeError for a value that is not an answer."""
    return notebook.render(_find(_DOCUMENTS, answer)(answer))


def text(answer: object) -> str:
    """Return an answer as plain text. Raises TypeError for a value that is not an answer."""
    return terminal.plain(_find(_TEXTS, answer)(answer))


def _find(documents: Mapping[type, Callable[[Any], Any]], answer: object) -> Callable[[Any], Any]:
    if type(answer) not in documents:
        raise TypeError(f"{type(answer).__name__} is not an answer; answers/faces.py lists the classes of answers")
    return documents[type(answer)]
