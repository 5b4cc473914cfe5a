"""A check, a run, its outcome, its metrics and its predictions as plain text: what a terminal shows, for notebooks."""

from rich.console import Group
from rich.text import Text

from shoestring import display
from shoestring.check.preflight import CheckResult
from shoestring.report.metrics import summary
from shoestring.report.terminal import checked, evaluated, exported, predictions, watched
from shoestring.report.text import plain
from shoestring.report.watch.view import View
from shoestring.runs.evaluate import Evaluation
from shoestring.runs.export import Export
from shoestring.runs.loaded import LoadedModel
from shoestring.runs.predict import Predictions
from shoestring.session.outcome import Outcome


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
