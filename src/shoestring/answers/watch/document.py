"""A run at one moment as a document, which a notebook draws every few seconds while the run trains."""

from collections.abc import Iterator
from datetime import UTC, datetime

from shoestring.answers import metrics
from shoestring.answers.document import (
    Bar,
    Cell,
    Column,
    Command,
    Document,
    Element,
    Fact,
    KeyFigure,
    LineChart,
    Metrics,
    Paragraph,
    Point,
    Section,
    Series,
    Span,
    Sparkline,
    Table,
    key_figure,
)
from shoestring.answers.values import count, duration, size, words
from shoestring.answers.watch import sentences
from shoestring.answers.watch.sentences import number_text
from shoestring.answers.watch.view import View
from shoestring.base.units import parameters_text

_COLUMNS, _SPARKS = 240, 60
"""Points of a curve."""
_EVENTS, _MAX_METRICS, _MAX_REWARDS = 5, 8, 3


def document(view: View) -> Document:
    """Return position, loss with its evaluations, speed and memory beside the plan, metrics, and the last events."""
    progress = min(1.0, view.update / view.total_updates) if view.total_updates else 0.0
    device = f"session {count(view.session)} on {view.device} · " if view.session else ""
    measured = [metrics.part(name, values, limit=_MAX_METRICS) for name, values in view.metrics.items()]
    return Document(
        title=view.recipe,
        status=view.status,
        subtitle=f"{device}{view.run}",
        content=[
            *_status(view),
            Bar([progress], view.status),
            _position(view, progress),
            *facts(view),
            *_loss(view),
            *_rewards(view),
            *([Section("metrics", [Metrics(measured)])] if measured else []),
            *_events(view),
            *(Paragraph(problem, "note") for problem in view.problems),
        ],
    )


def _status(view: View) -> Iterator[Element]:
    """Yield what the status means, and how a run that does not train goes on."""
    if text := sentences.explanation(view):
        yield Paragraph(f"{view.status.capitalize()}: {text}.")
    if sentences.can_continue(view):
        yield Command(view.next, "Run the cell that trains again to go on, or type in a terminal:")


def _position(view: View, progress: float) -> Element:
    epoch = f", epoch {count(view.epoch)}" if view.epoch is not None else ""
    return key_figure("update", f"{count(view.update)} of {count(view.total_updates)}", f"{progress:.1%}{epoch}")


def facts(view: View) -> Iterator[Fact]:
    """Yield what a terminal shows in a line each, and a notebook as key figures."""
    if {"total", "trainable"} <= view.parameters.keys():
        yield Fact("model", [Paragraph(parameters_text(view.parameters["total"], view.parameters["trainable"]))])
    if view.samples_per_second is not None:
        planned = view.planned_update_seconds
        details = f"{duration(view.update_seconds)} an update"
        details += f", planned {duration(planned)}" if planned is not None else ""
        figure = KeyFigure("samples per second", number_text(view.samples_per_second), details)
        yield Fact("speed", [Paragraph(sentences.speed(view), figure=figure)])
    time = sentences.time(view)
    yield Fact("time", [Paragraph(time, figure=KeyFigure("time", *time.split(" in ", 1)))])
    if view.seconds_left:
        left = sentences.time_left(view)
        yield Fact("left", [Paragraph(left, figure=KeyFigure("time left", *left.split(", ", 1)))])
    if view.peak_memory_bytes is not None:
        peak, planned_memory = size(view.peak_memory_bytes), sentences.planned_memory(view.planned_memory)
        figure = KeyFigure("peak memory", peak, planned_memory.removeprefix(" · "))
        yield Fact("memory", [Paragraph(f"peak {peak}{planned_memory}", figure=figure)])


def _loss(view: View) -> Iterator[Element]:
    """Yield the training loss as a curve and the validation loss as dots, over the updates."""
    values = view.loss_curve.columns(min(_COLUMNS, len(view.loss_curve)))
    if not values:
        return
    last_update = max(1, view.update, *(item.update for item in view.evaluations))
    training = [last_update * (index + 1) / len(values) for index in range(len(values))]
    validation = [
        Point(item.update, loss, loss, loss)
        for item in view.evaluations
        if item.part == "validation" and (loss := item.metrics.get("loss")) is not None
    ]
    points = [Point(update, loss, loss, loss) for update, loss in zip(training, values, strict=True)]
    chart = LineChart(
        label="Loss over the updates",
        x="update",
        y="loss",
        series=[
            Series(name="training", points=points, color="blue", latest=view.loss),
            Series(name="validation", points=validation, color="orange", has_dots=True),
        ],
        end=last_update,
        can_be_logarithmic=True,
    )
    best = view.best_metrics.get("loss")
    best_epoch = f"best epoch {number_text(best)} at update {count(view.best_update)}"
    yield Section("loss", [chart, *([Paragraph(best_epoch, "faint")] if best is not None else [])])


def _rewards(view: View) -> Iterator[Element]:
    rows: list[list[Cell]] = [
        [
            words(name),
            Span(number_text(view.rewards[name]), "strong"),
            Sparkline(view.reward_curves[name].columns(_SPARKS)),
        ]
        for name in list(view.rewards)[:_MAX_REWARDS]
    ]
    if rows:
        yield Section("rewards", [Table([Column(), Column(is_numeric=True), Column()], rows)])


def _events(view: View) -> Iterator[Element]:
    rows = [
        (Span(datetime.fromtimestamp(event["time"], UTC).strftime("%H:%M:%S"), "faint"), event["text"])
        for event in view.events[-_EVENTS:]
    ]
    if rows:
        yield Section("last events (UTC)", [Table([Column(), Column()], rows)])
