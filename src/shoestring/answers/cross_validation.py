"""The outcome of a cross-validation, and the metrics of its folds with their mean and spread."""

from collections.abc import Sequence
from pathlib import Path

from shoestring.answers.document import Cell, Column, Document, Element, Paragraph, Section, Span, Status, Table
from shoestring.answers.metrics import is_qualifier
from shoestring.answers.values import count, metric_text, words
from shoestring.answers.wording import note_lines
from shoestring.base import shell
from shoestring.runs.folds.outcome import CrossValidation, MetricOfFolds
from shoestring.training.session.outcome import Outcome

_MOST_COLUMNS = 10
"""The number of folds whose values have columns of their own."""


def document(outcome: CrossValidation) -> Document:
    """Return the outcome of the session that trained folds."""
    run = outcome.run
    following = [f"out-of-fold predictions: {outcome.out_of_fold}"] if outcome.out_of_fold else []
    if outcome.finished:
        following.append(f"create the report: {shell.join(['shoestring', 'report', Path(run)])}")
    else:
        folds = str(len(outcome.folds))
        command = shell.join(["shoestring", "train", outcome.recipe, "--folds", folds, "--run", Path(run)])
        following.append(f"repeat the same command to continue: {command}")
    rows: list[list[Cell]] = [
        [f"fold {number}", Status(fold.status), _progress(fold)] for number, fold in enumerate(outcome.folds, 1)
    ]
    return Document(
        title=f"{len(outcome.folds)} folds of {outcome.recipe}",
        status=outcome.status,
        sentences=[Span(f"{outcome.status}: {outcome.reason}", "strong")],
        content=[
            Table([Column(), Column(), Column()], rows),
            *([metrics_table(outcome.metrics)] if outcome.metrics else []),
            *(Paragraph(text, can_wrap=False) for text in following),
            *note_lines(outcome.notes),
        ],
    )


def _progress(fold: Outcome) -> str:
    if not fold.total_updates:
        return "not begun"
    return f"update {count(fold.update)} of {count(fold.total_updates)}"


def section(metrics: Sequence[MetricOfFolds], planned: int) -> Section:
    """Return the metrics of the folds that are finished, of so many, for a report."""
    if not metrics:
        return Section("Folds", [Paragraph("No fold is finished yet.", "faint")])
    finished = len(metrics[0].values)
    content: list[Element] = [metrics_table(metrics)]
    text = "The spread is the standard deviation between folds, with n - 1 in the denominator."
    if finished < planned:
        text += f" {finished} of {planned} folds are finished."
    return Section("Folds", [*content, Paragraph(text, "faint")])


def metrics_table(metrics: Sequence[MetricOfFolds]) -> Table:
    """Return the mean and the spread of each metric, and its values in the folds."""
    listed = [metric for metric in metrics if not is_qualifier(metric.name)]
    folds = max((len(metric.values) for metric in listed), default=0)
    folds = folds if folds <= _MOST_COLUMNS else 0
    names = ("mean", "spread", *(f"fold {number}" for number in range(1, folds + 1)))
    rows: list[list[Cell]] = [
        [
            f"{words(metric.name)} ({metric.part})",
            metric_text(metric.mean),
            metric_text(metric.deviation),
            *map(metric_text, metric.values[:folds]),
        ]
        for metric in listed
    ]
    return Table([Column("metric"), *(Column(name, is_numeric=True) for name in names)], rows)
