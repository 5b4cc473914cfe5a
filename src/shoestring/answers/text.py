"""Answers as plain text, which `print` shows: the same content as in a terminal."""

from io import StringIO

from rich.console import Group, RenderableType
from rich.text import Text

from shoestring.answers.metrics import summary
from shoestring.answers.terminal import (
    checked,
    comparison,
    estimate,
    evaluated,
    exported,
    inference,
    plan,
    predictions,
    watched,
)
from shoestring.answers.terminal.console import SafeConsole
from shoestring.answers.watch.view import View
from shoestring.base import display
from shoestring.planning.comparison import Comparison
from shoestring.planning.estimation import Estimate
from shoestring.planning.inference import InferencePlan
from shoestring.planning.plan import Plan
from shoestring.runs.check.preflight import CheckResult
from shoestring.runs.evaluate import Evaluation
from shoestring.runs.export.export import Export
from shoestring.runs.predict.loaded import LoadedModel
from shoestring.runs.predict.predict import Predictions
from shoestring.training.session.outcome import Outcome

WIDTH = 100
"""Columns. A plan's summary has at most 25 lines of this width."""


@display.text.register
def _plan(answer: Plan) -> str:
    return plain(plan.summary(answer, full="shoestring plan --full"))


@display.text.register
def _estimate(answer: Estimate) -> str:
    return plain(estimate.screen(answer))


@display.text.register
def _inference(answer: InferencePlan) -> str:
    return plain(inference.screen(answer))


@display.text.register
def _comparison(answer: Comparison) -> str:
    return plain(comparison.screen(answer))


@display.text.register
def _check(answer: CheckResult) -> str:
    return plain(checked.screen(answer))


@display.text.register
def _view(answer: View) -> str:
    return plain(watched.Screen(answer))


@display.text.register
def _outcome(answer: Outcome) -> str:
    lines = [f"{answer.status} at update {answer.update} of {answer.total_updates}: {answer.reason}"]
    lines += [f"{part}: {summary(metrics)}" for part, metrics in answer.metrics.items()]
    return plain(Group(*map(Text, lines)))


@display.text.register
def _evaluation(answer: Evaluation) -> str:
    return plain(evaluated.screen(answer))


@display.text.register
def _predictions(answer: Predictions) -> str:
    return "\n".join(predictions.messages(answer))


@display.text.register
def _export(answer: Export) -> str:
    return plain(exported.screen(answer))


@display.text.register
def _loaded(answer: LoadedModel) -> str:
    return plain(Text("\n".join([repr(answer), *answer.notes])))


def plain(content: RenderableType) -> str:
    """Return what a terminal would show, without colors."""
    console = SafeConsole(file=StringIO(), width=WIDTH, color_system=None)
    with console.capture() as capture:
        console.print(content, crop=False)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
