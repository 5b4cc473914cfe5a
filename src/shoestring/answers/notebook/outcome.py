"""The displays of what a session leaves: its outcome, metrics, predictions, an exported folder, a loaded model."""

from shoestring.answers.markup import EMPTY, Content, Markup, element
from shoestring.answers.notebook import drawing
from shoestring.answers.notebook.layout import FAINT, STATUS_COLORS, box, lines, section, table, tiles
from shoestring.answers.notebook.metrics import confusion, metrics_table
from shoestring.answers.values import UNKNOWN, count, duration, lookup, metric_text, share, size
from shoestring.base import display
from shoestring.runs.evaluate import Evaluation
from shoestring.runs.export.export import Export
from shoestring.runs.predict.loaded import LoadedModel
from shoestring.runs.predict.predict import Predictions
from shoestring.training.session.outcome import Outcome

_FILES = 20
_NAMES = {"validation": "validation, best epoch", "test": "test, best epoch's weights"}


@display.html.register
def render_outcome(outcome: Outcome) -> Markup:
    """Render why the session ended, how far the run is, how to go on, and the metrics."""
    progress = outcome.update / outcome.total_updates if outcome.total_updates else 0.0
    position = f"update {count(outcome.update)} of {count(outcome.total_updates)}"
    pause = " Run the cell again to go on." if outcome.status == "paused" else ""
    return box(
        "Training",
        outcome.status,
        f"{position} \N{MIDDLE DOT} {share(outcome.update, outcome.total_updates)}",
        element("div", f"{outcome.status.capitalize()}: {outcome.reason}.{pause}", style="margin:6px 0"),
        drawing.bar([(STATUS_COLORS[outcome.status], min(1.0, progress))]),
        section("Metrics", metrics_table({_NAMES.get(part, part): row for part, row in outcome.metrics.items()}))
        if outcome.metrics
        else EMPTY,
    )


@display.html.register
def render_evaluation(evaluation: Evaluation) -> Markup:
    """Render the metrics of saved weights by part of the data, and the confusion matrices of their evidence."""
    return box(
        f"Metrics of {evaluation.recipe}",
        "",
        f"{_weights(evaluation.update, evaluation.weights)} \N{MIDDLE DOT} {evaluation.device} \N{MIDDLE DOT} "
        f"{evaluation.precision} \N{MIDDLE DOT} {duration(evaluation.seconds)}",
        element("div", metrics_table(evaluation.metrics), style="margin-top:8px"),
        [confusion(lookup(evidence, "confusion_matrix"), part) for part, evidence in evaluation.evidence.items()],
        lines([*([f"rows: {evaluation.out}"] if evaluation.out else []), *evaluation.notes]),
    )


@display.html.register
def render_predictions(predictions: Predictions) -> Markup:
    """Render how many inputs were predicted, and where the rows are."""
    rows: list[tuple[Content, ...]] = [("rows in", element("b", predictions.out or "standard output"))]
    if predictions.reason:
        rows.append(("paused", f"{predictions.reason}; repeat the call to continue"))
    return box(
        f"Predictions of {predictions.recipe}",
        predictions.status,
        predictions.weights,
        tiles(
            [
                ("rows", count(predictions.rows), ""),
                ("with an error", count(predictions.errors), ""),
                ("time", duration(predictions.seconds), f"{predictions.device}, {predictions.precision}"),
            ]
        ),
        table(rows),
        lines(predictions.notes),
    )


@display.html.register
def render_export(export: Export) -> Markup:
    """Render the folder, its size, the difference from the model, and its files."""
    omitted = [f"and {len(export.files) - _FILES} more"] if len(export.files) > _FILES else []
    return box(
        f"{export.recipe} as {export.format}",
        "",
        UNKNOWN if export.update is None else f"the weights of update {count(export.update)}",
        tiles(
            [
                ("size", size(export.bytes), f"{count(len(export.files))} files"),
                ("largest difference of an output", metric_text(export.max_difference), "from the model's"),
            ]
        ),
        table([("folder", element("b", export.path)), ("files", ", ".join([*export.files[:_FILES], *omitted]))]),
        lines(export.notes),
    )


@display.html.register
def render_loaded(loaded: LoadedModel) -> Markup:
    """Render which weights the model has, and how large it is."""
    parameters = sum(parameter.numel() for parameter in loaded.model.parameters())
    return box(
        f"Model of {loaded.name}",
        "",
        _weights(loaded.update, loaded.weights),
        tiles([("parameters", count(parameters), type(loaded.model).__name__)]),
        element("div", "model.predict(inputs) returns a row for each input.", style=FAINT),
        lines(loaded.notes),
    )


def _weights(update: int | None, weights: str) -> str:
    return weights if update is None else f"{weights}, update {count(update)}"
