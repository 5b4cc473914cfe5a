"""The notebook display of a run: a check before it, the run while it trains, its outcome, its metrics, its predictions.

The HTML is self-contained and has no scripts. Colors are those of the page around it, with accents that are readable on
light and dark backgrounds; without styles it is still text and tables in a sensible order.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shoestring import display
from shoestring.check.preflight import CheckResult
from shoestring.report.markup import EMPTY, Content, Markup, element, join
from shoestring.report.metrics import comparison, is_qualifier, summary, with_error
from shoestring.report.values import count, duration, size, words
from shoestring.report.watch.view import View
from shoestring.runs.evaluate import Evaluation
from shoestring.runs.predict import Predictions
from shoestring.session.outcome import Outcome

_BOX = "font-family:system-ui,sans-serif;line-height:1.45;max-width:60em"
_CELL = "text-align:left;padding:1px 14px 1px 0;vertical-align:top"
_FAINT = "opacity:.7"
_BLUE, _RED, _GREEN, _AMBER = "#3b8fd0", "#e0604c", "#2da44e", "#c98a1b"
_COLORS = {
    "pass": _GREEN,
    "warn": _AMBER,
    "fail": _RED,
    "finished": _GREEN,
    "running": _BLUE,
    "starting": _BLUE,
    "paused": _AMBER,
    "failed": _RED,
    "killed": _RED,
}
_COLUMNS, _WIDTH, _HEIGHT = 240, 720.0, 150.0
_EVENTS, _MAX_METRICS = 4, 6


@display.html.register
def render_check(result: CheckResult) -> Markup:
    """Render every finding with its status and its hint."""
    subject = f"{result.recipe} on {result.target}" if result.recipe else result.target
    rows = [
        (
            _label(finding.status),
            finding.name,
            [finding.message, element("div", finding.hint, style=_FAINT) if finding.hint else EMPTY],
        )
        for finding in result.findings
    ]
    preview = element("pre", result.preview, style="white-space:pre-wrap") if result.preview else EMPTY
    return _box(f"check of this machine for {subject}", _label(result.status), preview, _table(rows))


@display.html.register
def render_outcome(outcome: Outcome) -> Markup:
    """Render the end of a session: why it ended, how far the run is, and the metrics."""
    position = f"update {count(outcome.update)} of {count(outcome.total_updates)}"
    pause = "Run the cell again to go on." if outcome.status == "paused" else ""
    return _box(
        position, _label(outcome.status), element("div", outcome.reason, ". ", pause), _metrics(outcome.metrics)
    )


@display.html.register
def render_evaluation(evaluation: Evaluation) -> Markup:
    """Render the metrics of saved weights by part of the data."""
    update = f"update {count(evaluation.update)} · " if evaluation.update is not None else ""
    facts = f"{update}{evaluation.device} · {evaluation.precision} · {duration(evaluation.seconds)}"
    notes = [element("div", note, style=_FAINT) for note in evaluation.notes]
    title = f"{evaluation.recipe}, {Path(evaluation.weights).name}"
    return _box(title, EMPTY, element("div", facts, style=_FAINT), _metrics(evaluation.metrics), notes)


@display.html.register
def render_predictions(predictions: Predictions) -> Markup:
    """Render how many inputs were predicted, and where the rows are."""
    facts = [(name, str(value)) for name, value in _facts_of(predictions).items()]
    return _box(f"predictions of {predictions.recipe}", _label(predictions.status), _table(facts))


@display.html.register
def render_view(view: View) -> Markup:
    """Render a run at one moment: position, loss with its evaluations, speed, memory, and what happened last."""
    epoch = f" · epoch {count(view.epoch)}" if view.epoch is not None else ""
    share = min(1.0, view.update / view.total_updates) if view.total_updates else 0.0
    position = f"update {count(view.update)} of {count(view.total_updates)} · {share:.0%}{epoch}"
    reason = element("div", view.reason) if view.reason and view.status != "running" else EMPTY
    facts = [
        *(
            (part, " · ".join(f"{words(name)} {with_error(metrics, name)}" for name in _main_metrics(metrics)))
            for part, metrics in view.metrics.items()
        ),
        *_speed(view),
        *_memory(view),
        ("time", _time(view)),
        *(("event", event["text"]) for event in view.events[-_EVENTS:]),
        *(("problem", problem) for problem in view.problems),
    ]
    return _box(view.recipe, _label(view.status), reason, _bar(share, position), _curve(view), _table(facts))


def _facts_of(predictions: Predictions) -> Mapping[str, Any]:
    names = ("rows", "errors", "out", "reason", "seconds", "device")
    values = {name: getattr(predictions, name, None) for name in names}
    return {name: duration(value) if name == "seconds" else value for name, value in values.items() if value}


def _metrics(metrics: Mapping[str, Any]) -> Markup:
    """Return a table of the metrics, one line for each part of the data and each thing that was compared."""
    rows: list[tuple[Content, ...]] = []
    for part, values in metrics.items():
        rows.append((element("b", part), summary(values)))
        rows += [(f"– {name}", summary(row)) for name, row in comparison(values).items()]
    return _table(rows)


def _main_metrics(metrics: Mapping[str, float]) -> list[str]:
    return [name for name in metrics if not is_qualifier(name)][:_MAX_METRICS]


def _speed(view: View) -> Iterable[tuple[Content, ...]]:
    if view.samples_per_second is not None:
        planned = view.planned_update_seconds
        text = f"{view.samples_per_second:,.3g} samples a second · {duration(view.update_seconds)} per update"
        yield "speed", text + (f" (planned {duration(planned)})" if planned is not None else "")


def _memory(view: View) -> Iterable[tuple[Content, ...]]:
    if view.peak_memory_bytes is not None:
        plan = view.planned_memory
        planned = f" (planned {size(plan['peak_bytes'])})" if plan.get("peak_bytes") else ""
        capacity = plan.get("capacity_bytes")
        text = f"{size(view.peak_memory_bytes)} at the peak{planned}"
        yield "memory", _bar(view.peak_memory_bytes / capacity, f"{text} of {size(capacity)}") if capacity else text


def _time(view: View) -> str:
    left = f" · about {duration(view.seconds_left)} left" if view.seconds_left else ""
    sessions = f" in {view.session} sessions" if view.session > 1 else ""
    return f"{duration(view.seconds)}{sessions}{left}"


def _curve(view: View) -> Markup:
    """Draw the training loss as a line and the validation loss as dots, over the updates."""
    values = view.loss_curve.columns(_COLUMNS)
    if len(values) < 2:
        return EMPTY
    last_update = max(1, view.update, *(item.update for item in view.evaluations))
    dots = [
        (item.update / last_update, item.metrics["loss"])
        for item in view.evaluations
        if item.part == "validation" and "loss" in item.metrics
    ]
    low, high = min([*values, *(loss for _, loss in dots)]), max([*values, *(loss for _, loss in dots)])
    scale = _HEIGHT / ((high - low) or 1.0)

    def y(value: float) -> float:
        return 6 + _HEIGHT - (value - low) * scale

    line = " ".join(f"{_WIDTH * index / (len(values) - 1):.1f},{y(value):.1f}" for index, value in enumerate(values))
    circles = [
        element("circle", cx=f"{_WIDTH * share:.1f}", cy=f"{y(loss):.1f}", r="3", fill=_RED) for share, loss in dots
    ]
    drawing = element(
        "svg",
        element("polyline", points=line, fill="none", stroke=_BLUE, stroke_width="2"),
        circles,
        viewBox=f"-4 0 {_WIDTH + 8:.0f} {_HEIGHT + 12:.0f}",
        width="100%",
        height="165",
        preserveAspectRatio="none",
        role="img",
        aria_label="training loss and validation loss",
    )
    legend = [element("span", "━ training loss", style=f"color:{_BLUE}"), f" {view.loss:.4g}" if view.loss else ""]
    if dots:
        legend += [" · ", element("span", "● validation loss", style=f"color:{_RED}"), f" {dots[-1][1]:.4g}"]
    return join(
        [
            element("div", legend, f" · between {low:.4g} and {high:.4g}", style="margin-top:6px;font-size:90%"),
            element("div", drawing, style="border-left:1px solid #8888;border-bottom:1px solid #8888"),
        ]
    )


def _bar(share: float, text: str) -> Markup:
    """Return a bar that is filled to a share of its width, with its text below."""
    filled = element("div", style=f"height:8px;border-radius:4px;width:{min(1.0, share):.2%};background:{_BLUE}")
    track = element("div", filled, style="background:#8883;border-radius:4px;max-width:44em")
    return join([track, element("div", text)])


def _label(status: str) -> Markup:
    return element("b", status, style=f"color:{_COLORS.get(status, _AMBER)}")


def _box(title: str, label: Markup, *content: Content) -> Markup:
    headline = element("div", element("b", title), " · " if label else "", label)
    return element("div", headline, *content, style=_BOX)


def _table(rows: Iterable[Iterable[Content]]) -> Markup:
    """Return a table without borders, whatever the page around it draws."""
    lines = [element("tr", [element("td", cell, style=_CELL) for cell in row], style="background:none") for row in rows]
    return element("table", lines, style="margin:4px 0;border-collapse:collapse") if lines else EMPTY
