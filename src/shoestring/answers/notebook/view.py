"""The display of a run at one moment, which is drawn every few seconds while it trains."""

from collections.abc import Iterator
from datetime import UTC, datetime

from shoestring.answers.markup import EMPTY, Content, Markup, element, join
from shoestring.answers.notebook import drawing
from shoestring.answers.notebook.layout import (
    BLUE,
    FAINT,
    ORANGE,
    STATUS_COLORS,
    box,
    code,
    dotted,
    fold,
    lines,
    section,
    table,
    tiles,
)
from shoestring.answers.notebook.metrics import metrics_table
from shoestring.answers.values import count, duration, size, words
from shoestring.answers.watch import sentences
from shoestring.answers.watch.sentences import number_text
from shoestring.answers.watch.view import View
from shoestring.base import display

_COLUMNS, _SPARKS = 240, 60
"""Points of a curve."""
_EVENTS, _MAX_METRICS, _MAX_REWARDS = 5, 8, 3


@display.html.register
def render(view: View) -> Markup:
    """Render position, loss with its evaluations, speed and memory beside the plan, metrics, and the last events."""
    progress = min(1.0, view.update / view.total_updates) if view.total_updates else 0.0
    device = f"session {count(view.session)} on {view.device} \N{MIDDLE DOT} " if view.session else ""
    return box(
        view.recipe,
        view.status,
        f"{device}{view.run}",
        _status(view),
        element(
            "div",
            drawing.bar([(STATUS_COLORS.get(view.status, BLUE), progress)], height=12),
            style="margin-top:8px",
        ),
        tiles(_tiles(view, progress)),
        _loss(view),
        _rewards(view),
        section("Metrics", metrics_table(view.metrics, limit=_MAX_METRICS)) if view.metrics else EMPTY,
        _events(view),
        lines(view.problems),
    )


def _status(view: View) -> Markup:
    """Return what the status means, and how a run that does not train goes on."""
    text = sentences.explanation(view)
    sentence = element("div", f"{view.status.capitalize()}: {text}.", style="margin-top:4px") if text else EMPTY
    if not sentences.can_continue(view):
        return sentence
    title = "Run the cell that trains again to go on, or type in a terminal:"
    return join([sentence, element("div", title, style="margin-top:4px"), code(view.next)])


def _tiles(view: View, progress: float) -> Iterator[tuple[str, str, str]]:
    epoch = f", epoch {count(view.epoch)}" if view.epoch is not None else ""
    yield "update", f"{count(view.update)} of {count(view.total_updates)}", f"{progress:.1%}{epoch}"
    if view.seconds_left:
        yield "time left", duration(view.seconds_left), f"{sentences.time(view)} so far"
    else:
        yield "time", duration(view.seconds), sentences.time(view).partition(" in ")[2]
    if view.samples_per_second is not None:
        planned = view.planned_update_seconds
        plan = f", planned {duration(planned)}" if planned is not None else ""
        yield (
            "samples per second",
            number_text(view.samples_per_second),
            f"{duration(view.update_seconds)} an update{plan}",
        )
    if view.peak_memory_bytes is not None:
        plan = sentences.planned_memory(view.planned_memory).removeprefix(" \N{MIDDLE DOT} ")
        yield "peak memory", size(view.peak_memory_bytes), plan


def _loss(view: View) -> Markup:
    """Draw the training loss as a line and the validation loss as dots, over the updates."""
    values = view.loss_curve.columns(min(_COLUMNS, len(view.loss_curve)))
    if not values:
        return EMPTY
    last_update = max(1, view.update, *(item.update for item in view.evaluations))
    dots = [
        (item.update / last_update, item.metrics["loss"])
        for item in view.evaluations
        if item.part == "validation" and "loss" in item.metrics
    ]
    numbers = [*values, *(loss for _, loss in dots)]
    low, high = min(numbers), max(numbers)
    scale = element(
        "div",
        [element("div", number_text(value)) for value in (high, (low + high) / 2, low)],
        style=f"{FAINT};display:flex;flex-direction:column;justify-content:space-between;text-align:right;height:180px",
    )
    drawing_of_loss = drawing.curve(values, dots, (low, high), (BLUE, ORANGE))
    axis = element(
        "div",
        element("span", "0"),
        " ",
        element("span", f"update {count(last_update)}"),
        style=f"{FAINT};display:flex;justify-content:space-between",
    )
    return section(
        "Loss",
        element("div", dotted(_legend(view, dots)), style="font-size:12px;margin-bottom:6px"),
        element(
            "div",
            scale,
            element("div", drawing_of_loss, axis, style="flex:1;min-width:0"),
            style="display:flex;gap:8px",
        ),
    )


def _legend(view: View, dots: list[tuple[float, float]]) -> Iterator[Content]:
    yield [
        element("span", "\N{BOX DRAWINGS HEAVY HORIZONTAL} ", style=f"color:{BLUE}"),
        f"training {number_text(view.loss)}",
    ]
    if dots:
        yield [element("span", "\N{BLACK CIRCLE} ", style=f"color:{ORANGE}"), f"validation {number_text(dots[-1][1])}"]
    if (best := view.best_metrics.get("loss")) is not None:
        yield f"best epoch {number_text(best)} at update {count(view.best_update)}"


def _rewards(view: View) -> Markup:
    rows = [
        (words(name), element("b", number_text(view.rewards[name])), drawing.sparkline(_curve(view, name), BLUE))
        for name in list(view.rewards)[:_MAX_REWARDS]
    ]
    return section("Rewards", table(rows, numeric=[1])) if rows else EMPTY


def _curve(view: View, name: str) -> list[float]:
    return view.reward_curves[name].columns(_SPARKS)


def _events(view: View) -> Markup:
    rows = [
        (element("span", datetime.fromtimestamp(event["time"], UTC).strftime("%H:%M:%S"), style=FAINT), event["text"])
        for event in view.events[-_EVENTS:]
    ]
    return fold("Last events (UTC)", table(rows), is_open=True) if rows else EMPTY
