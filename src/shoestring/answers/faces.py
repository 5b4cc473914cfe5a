"""Answers as text and as HTML: the document that each class of answer is, and the renderer of each face."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from shoestring.answers.renderers.notebook import document as notebook
from shoestring.answers.renderers.terminal import document as terminal

_DOCUMENTS: Mapping[str, str] = {
    "planning.plan.Plan": "plan.document",
    "planning.comparison.Comparison": "comparison.document",
    "planning.estimation.Estimate": "estimate.document",
    "planning.inference.InferencePlan": "inference.document",
    "runs.check.preflight.CheckResult": "check.document",
    "runs.evaluate.Evaluation": "evaluated.document",
    "runs.export.export.Export": "exported.document",
    "runs.folds.outcome.CrossValidation": "cross_validation.document",
    "runs.measurement.measurement.Measurement": "measurement.document",
    "runs.predict.loaded.LoadedModel": "loaded.document",
    "runs.predict.predict.Predictions": "predictions.document",
    "runs.rehearse.prepared.PreparedRehearsal": "rehearsal.prepared.document",
    "runs.rehearse.rehearsal.Rehearsal": "rehearsal.document.document",
    "training.session.outcome.Outcome": "outcome.without_command",
    "answers.watch.view.View": "watch.document.document",
}
"""The function below `answers` that makes a document of an answer, by the answer's class. It is imported when it is
needed: a notebook carries no modules for rehearsals."""
_TEXTS: Mapping[str, str] = {
    **_DOCUMENTS,
    "planning.plan.Plan": "plan.printed",
    "runs.rehearse.rehearsal.Rehearsal": "rehearsal.document.printed",
    "answers.watch.view.View": "watch.screen.Screen",
}
"""`print` shows the summary of a plan and of a rehearsal, since a terminal cannot fold, and a run as `shoestring watch`
does."""


def html(answer: object) -> str:
    """Return the HTML of an answer in a notebook. Raises TypeError for a value that is not an answer."""
    return notebook.render(_find(_DOCUMENTS, answer)(answer))


def text(answer: object) -> str:
    """Return an answer as plain text. Raises TypeError for a value that is not an answer."""
    return terminal.plain(_find(_TEXTS, answer)(answer))


def _find(documents: Mapping[str, str], answer: object) -> Callable[[Any], Any]:
    kind = type(answer)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("shoestring.")
    if name not in documents:
        raise TypeError(f"{kind.__name__} is not an answer; answers/faces.py lists the classes of answers")
    module, _, function = documents[name].rpartition(".")
    result: Callable[[Any], Any] = getattr(import_module(f"shoestring.answers.{module}"), function)
    return result
