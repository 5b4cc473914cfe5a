"""Curves over the updates of a run: loss, metrics, learning rate, throughput and memory."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoestring.answers.metrics import BASELINE, is_qualifier
from shoestring.answers.renderers.markup import EMPTY, Markup
from shoestring.answers.renderers.page import svg
from shoestring.answers.report.run import Run
from shoestring.answers.values import lookup, metric_text, numbers, words
from shoestring.base.reading import number
from shoestring.base.units import GIB, MIB, bytes_text
from shoestring.training.monitor.events import Event
from shoestring.training.monitor.progress import is_reward

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDE, HALF = (720.0, 250.0), (360.0, 190.0)
"""Width and height of a figure in points."""

_MAX_POINTS = 300
MAX_LABEL = 60
"""Characters of a metric's name in a figure."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A group of neighbouring values: the last update, the weighted mean, the minimum and the maximum."""

    update: float
    mean: float
    low: float
    high: float


def downsample(values: Sequence[tuple[float, float, float]], max_points: int = _MAX_POINTS) -> list[Point]:
    """Reduce the (update, value, weight) triples of a curve to about `max_points` points at most."""
    step = max(1, -(-len(values) // max_points))
    return [_point(values[first : first + step]) for first in range(0, len(values), step)]


def loss(run: Run) -> Markup:
    """Draw the training and validation loss on one scale."""
    training = downsample(event_values(run.events_of("progress"), "loss", weight="updates"))
    validation = validation_values(run, "loss")
    if not training and not validation:
        return EMPTY

    def paint(axes: "Axes") -> None:
        _draw_session_starts(axes, run)
        _plot_curve(axes, training, svg.BLUE, "training")
        _plot_evaluations(axes, run, validation, svg.VERMILLION, "validation")
        lows = [point.low for point in training] + [value for _, value in validation]
        highs = [point.high for point in training] + [value for _, value in validation]
        # On a linear scale, a loss that falls by orders of magnitude is a steep drop and a flat line.
        if min(lows) > 0 and max(highs) > 50 * min(lows):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        _finish_axes(axes, run, "loss")
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3)

    return svg.draw(f"Loss of {run.name} over its updates", paint, width=WIDE[0], height=WIDE[1])


def metric_names(run: Run) -> list[str]:
    """Return the validation metrics to draw: numbers other than the loss, baselines and errors."""
    names: dict[str, None] = {}
    for event in run.events_of("evaluation"):
        if event.get("part") == "validation":
            names.update(dict.fromkeys(numbers(event.get("metrics"))))
    return [name for name in names if name != "loss" and not is_qualifier(name)]


def metric(run: Run, name: str) -> Markup:
    """Draw one metric on validation data, with its majority baseline if there is one."""
    values = validation_values(run, name)
    baseline = validation_values(run, BASELINE + name)

    def paint(axes: "Axes") -> None:
        _plot_evaluations(axes, run, values, svg.VERMILLION, "validation")
        if baseline:
            _draw_level(axes, baseline[-1][1], f"most frequent class {metric_text(baseline[-1][1])}")
        _finish_axes(axes, run, words(name))

    return svg.draw(f"{words(name)} on validation data", paint, width=HALF[0], height=HALF[1])


def reward_names(run: Run) -> list[str]:
    """Return the rewards that a trainer has logged."""
    names: dict[str, None] = {}
    for event in run.events_of("progress"):
        names.update(dict.fromkeys(filter(is_reward, numbers(event.get("metrics")))))
    return list(names)


def reward(run: Run, name: str) -> Markup:
    """Draw one reward over the updates."""
    values = [
        (update, value, 1.0)
        for event in run.events_of("progress")
        if (update := number(event.get("update"))) is not None
        and (value := number(lookup(event, "metrics", name))) is not None
    ]

    def paint(axes: "Axes") -> None:
        _plot_curve(axes, downsample(values), svg.BLUE, words(name))
        _finish_axes(axes, run, words(name))

    return svg.draw(f"{words(name)} of training", paint, width=HALF[0], height=HALF[1])


def learning_rate(run: Run) -> Markup:
    return _draw_progress_value(run, "learning_rate", "Learning rate over the updates")


def gradient_norm(run: Run) -> Markup:
    return _draw_progress_value(run, "gradient_norm", "Norm of the gradient over the updates")


def throughput(run: Run) -> Markup:
    """Draw the measured samples per second while training, and the planned rate."""
    measured = downsample(
        [
            (update, rate, seconds)
            for event in run.events_of("progress")
            if (update := number(event.get("update"))) is not None
            and (samples := number(event.get("samples"))) is not None
            and (seconds := number(event.get("seconds")))
            and (rate := number(samples / seconds)) is not None
        ]
    )
    if not measured:
        return EMPTY
    batch = number(lookup(run.plan, "options", "effective_batch"))
    planned = numbers(lookup(run.plan, "plan", "time"))
    update_seconds = planned.get("update_seconds")
    ends = [planned.get(f"{end}_update_seconds") or update_seconds for end in ("high", "low")]
    planned_rates = [number(batch / seconds) for seconds in (*ends, update_seconds) if batch and seconds]

    def paint(axes: "Axes") -> None:
        _draw_session_starts(axes, run)
        _plot_curve(axes, measured, svg.GREEN, "measured")
        match planned_rates:
            case [float(slowest), float(fastest), float(likely)]:
                _shade_range(axes, slowest, fastest)
                _draw_level(axes, likely, "planned")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        _finish_axes(axes, run, "samples / s", from_zero=True)

    return svg.draw("Training samples per second over the updates", paint, width=HALF[0], height=HALF[1])


def memory(run: Run) -> Markup:
    """Draw the measured memory, and the planned peak with its range."""
    planned = numbers(lookup(run.plan, "plan", "memory"))
    peak, capacity = planned.get("peak_bytes"), planned.get("capacity_bytes")
    series = event_values(run.events_of("progress"), "memory_bytes")
    if not series:
        return EMPTY
    highest = max([value for _, value, _ in series] + ([peak] if peak else []))
    unit, unit_name = (GIB, "GiB") if highest >= GIB else (MIB, "MiB")
    measured = downsample([(update, value / unit, weight) for update, value, weight in series])

    def paint(axes: "Axes") -> None:
        _plot_curve(axes, measured, svg.PURPLE, "measured")
        if peak:
            _shade_range(axes, planned.get("low_bytes", peak) / unit, planned.get("high_bytes", peak) / unit)
            _draw_level(axes, peak / unit, f"planned peak {bytes_text(peak)}")
        if capacity and capacity < 2 * highest:
            _draw_level(axes, capacity / unit, f"capacity {bytes_text(capacity)}", color=svg.VERMILLION)
        _finish_axes(axes, run, unit_name, from_zero=True)

    return svg.draw("Memory in use over the updates", paint, width=HALF[0], height=HALF[1])


def _draw_progress_value(run: Run, key: str, label: str) -> Markup:
    """Draw a number of the progress events on an axis from zero."""
    values = downsample(event_values(run.events_of("progress"), key))
    if not values:
        return EMPTY

    def paint(axes: "Axes") -> None:
        _plot_curve(axes, values, svg.BLUE, words(key))
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4))
        _finish_axes(axes, run, words(key), from_zero=True)

    return svg.draw(label, paint, width=HALF[0], height=HALF[1])


def _point(values: Sequence[tuple[float, float, float]]) -> Point:
    weights = sum(weight for *_, weight in values)
    heights = [value for _, value, _ in values]
    mean = sum(value * weight for _, value, weight in values) / weights if weights else sum(heights) / len(heights)
    return Point(update=values[-1][0], mean=mean, low=min(heights), high=max(heights))


def event_values(events: Iterable[Event], key: str, weight: str | None = None) -> list[tuple[float, float, float]]:
    """Return (update, value, weight) of every event that has the number `key`."""
    return [
        (update, value, (number(event.get(weight)) or 0.0) if weight else 1.0)
        for event in events
        if (update := number(event.get("update"))) is not None and (value := number(event.get(key))) is not None
    ]


def validation_values(run: Run, name: str) -> list[tuple[float, float]]:
    """Return (update, value) of one metric for every evaluation on validation data."""
    return [
        (update, value)
        for event in run.events_of("evaluation")
        if event.get("part") == "validation"
        and (update := number(event.get("update"))) is not None
        and (value := number(lookup(event, "metrics", name))) is not None
    ]


def _plot_curve(axes: "Axes", values: list[Point], color: str, label: str) -> None:
    if not values:
        return
    updates = [point.update for point in values]
    marker = "o" if len(values) == 1 else None
    axes.plot(updates, [point.mean for point in values], color=color, label=label, marker=marker, markersize=4)
    if any(point.low < point.high for point in values):
        lows, highs = [point.low for point in values], [point.high for point in values]
        axes.fill_between(updates, lows, highs, color=color, alpha=0.18, linewidth=0)


def _plot_evaluations(axes: "Axes", run: Run, values: list[tuple[float, float]], color: str, label: str) -> None:
    """Plot evaluations as dots, with a ring around the best one."""
    if not values:
        return
    updates, heights = zip(*values, strict=True)
    axes.plot(updates, heights, color=color, marker="o", markersize=3.2, label=label)
    best = [event.get("update") for event in run.events_of("evaluation") if event.get("best") is True][-1:]
    rings = [value for value in values if value[0] in best]
    if rings:
        axes.plot(*rings[0], color=color, marker="o", markersize=8, fillstyle="none", linestyle="none", label="best")


def _draw_level(axes: "Axes", height: float, text: str, *, color: str = svg.MUTED) -> None:
    """Draw a labeled horizontal line."""
    axes.axhline(height, color=color, linestyle="--", linewidth=1)
    axes.annotate(
        text,
        (1, height),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        color=svg.MUTED,
        fontsize=8,
    )


def _shade_range(axes: "Axes", low: float, high: float) -> None:
    """Shade the range that the plan predicted."""
    axes.axhspan(low, high, color=svg.MUTED, alpha=0.12, linewidth=0)


def _draw_session_starts(axes: "Axes", run: Run) -> None:
    for event in run.events_of("session")[1:]:
        if (update := number(event.get("update"))) is not None:
            axes.axvline(update, color=svg.MUTED, linewidth=0.9, linestyle=(0, (1, 3)), zorder=1)


def _finish_axes(axes: "Axes", run: Run, unit: str, *, from_zero: bool = False) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("update")
    axes.set_ylabel(unit[:MAX_LABEL])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.set_xlim(left=0, right=_last_update(run))
    axes.margins(y=0.12)
    if from_zero:
        axes.set_ylim(bottom=0)


def _last_update(run: Run) -> float:
    """Return the end of the axis, slightly beyond the last update."""
    return 1.01 * max([number(event.get("update")) or 0 for event in run.current] + [1])
