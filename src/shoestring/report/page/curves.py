"""Curves over a run's updates: loss, metrics, learning rate, throughput, memory."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoestring.monitor.events import Event
from shoestring.report.markup import EMPTY, Markup
from shoestring.report.metrics import BASELINE, is_about_another
from shoestring.report.page import svg
from shoestring.report.page.run import Run
from shoestring.report.values import dig, metric_text, number, numbers, words
from shoestring.units import GIB, MIB, bytes_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDE, HALF = (720.0, 250.0), (360.0, 190.0)
"""Width and height of a figure in points."""

_MOST_POINTS = 300


@dataclass(frozen=True, kw_only=True)
class Point:
    """Some neighbouring values as one: where they end, their mean, the lowest and the highest."""

    update: float
    mean: float
    low: float
    high: float


def points(values: Sequence[tuple[float, float, float]], most: int = _MOST_POINTS) -> list[Point]:
    """At most about `most` points for the (update, value, weight) of a curve."""
    step = max(1, -(-len(values) // most))
    return [_point(values[first : first + step]) for first in range(0, len(values), step)]


def loss(run: Run) -> Markup:
    """Training and validation loss, on one scale."""
    training = points(_series(run.of("progress"), "loss", weight="updates"))
    validation = _evaluated(run, "loss")
    if not training and not validation:
        return EMPTY

    def paint(axes: "Axes") -> None:
        _session_starts(axes, run)
        _curve(axes, training, svg.BLUE, "training")
        _marked(axes, run, validation, svg.VERMILLION, "validation")
        lows = [point.low for point in training] + [value for _, value in validation]
        highs = [point.high for point in training] + [value for _, value in validation]
        # A loss that falls through orders of magnitude is a cliff and a floor on a linear scale.
        if min(lows) > 0 and max(highs) > 50 * min(lows):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        _finish(axes, run, "loss")
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3)

    return svg.draw(f"Loss of {run.name} over its updates", paint, width=WIDE[0], height=WIDE[1])


def metric_names(run: Run) -> list[str]:
    """The metrics on validation data that are drawn: numbers, but neither the loss nor baselines."""
    names: dict[str, None] = {}
    for event in run.of("evaluation"):
        if event.get("part") == "validation":
            names.update(dict.fromkeys(numbers(event.get("metrics"))))
    return [name for name in names if name != "loss" and not is_about_another(name)]


def metric(run: Run, name: str) -> Markup:
    """One metric on validation data, beside its majority baseline where there is one."""
    values = _evaluated(run, name)
    baseline = _evaluated(run, BASELINE + name)

    def paint(axes: "Axes") -> None:
        _marked(axes, run, values, svg.VERMILLION, "validation")
        if baseline:
            _level(axes, baseline[-1][1], f"most frequent class {metric_text(baseline[-1][1])}")
        _finish(axes, run, words(name))

    return svg.draw(f"{words(name)} on validation data", paint, width=HALF[0], height=HALF[1])


def learning_rate(run: Run) -> Markup:
    return _plain(run, "learning_rate", "Learning rate over the updates")


def gradient_norm(run: Run) -> Markup:
    return _plain(run, "gradient_norm", "Norm of the gradient over the updates")


def throughput(run: Run) -> Markup:
    """Samples per second while training, beside what the plan expected."""
    measured = points(
        [
            (update, samples / seconds, seconds)
            for event in run.of("progress")
            if (update := number(event.get("update"))) is not None
            and (samples := number(event.get("samples"))) is not None
            and (seconds := number(event.get("seconds")))
        ]
    )
    if not measured:
        return EMPTY
    batch = number(dig(run.plan, "options", "effective_batch"))
    planned = numbers(dig(run.plan, "plan", "time"))
    update_seconds = planned.get("update_seconds")

    def paint(axes: "Axes") -> None:
        _session_starts(axes, run)
        _curve(axes, measured, svg.GREEN, "measured")
        if batch and update_seconds:
            slowest, fastest = (planned.get(f"{end}_update_seconds") or update_seconds for end in ("high", "low"))
            _range(axes, batch / slowest, batch / fastest)
            _level(axes, batch / update_seconds, "planned")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        _finish(axes, run, "samples / s", from_zero=True)

    return svg.draw("Training samples per second over the updates", paint, width=HALF[0], height=HALF[1])


def memory(run: Run) -> Markup:
    """Memory in use, beside the plan's peak and the range it gave."""
    planned = numbers(dig(run.plan, "plan", "memory"))
    peak, capacity = planned.get("peak_bytes"), planned.get("capacity_bytes")
    series = _series(run.of("progress"), "memory_bytes")
    if not series:
        return EMPTY
    highest = max([value for _, value, _ in series] + ([peak] if peak else []))
    unit, unit_name = (GIB, "GiB") if highest >= GIB else (MIB, "MiB")
    measured = points([(update, value / unit, weight) for update, value, weight in series])

    def paint(axes: "Axes") -> None:
        _curve(axes, measured, svg.PURPLE, "measured")
        if peak:
            _range(axes, planned.get("low_bytes", peak) / unit, planned.get("high_bytes", peak) / unit)
            _level(axes, peak / unit, f"planned peak {bytes_text(peak)}")
        if capacity and capacity < 2 * highest:
            _level(axes, capacity / unit, f"capacity {bytes_text(capacity)}", color=svg.VERMILLION)
        _finish(axes, run, unit_name, from_zero=True)

    return svg.draw("Memory in use over the updates", paint, width=HALF[0], height=HALF[1])


def _plain(run: Run, key: str, label: str) -> Markup:
    """A number of the progress as it was, from zero."""
    values = points(_series(run.of("progress"), key))
    if not values:
        return EMPTY

    def paint(axes: "Axes") -> None:
        _curve(axes, values, svg.BLUE, words(key))
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4))
        _finish(axes, run, words(key), from_zero=True)

    return svg.draw(label, paint, width=HALF[0], height=HALF[1])


def _point(values: Sequence[tuple[float, float, float]]) -> Point:
    weights = sum(weight for *_, weight in values)
    only = [value for _, value, _ in values]
    mean = sum(value * weight for _, value, weight in values) / weights if weights else sum(only) / len(only)
    return Point(update=values[-1][0], mean=mean, low=min(only), high=max(only))


def _series(events: Iterable[Event], key: str, weight: str | None = None) -> list[tuple[float, float, float]]:
    """(update, value, weight) of every event that has the number `key`."""
    return [
        (update, value, (number(event.get(weight)) or 0.0) if weight else 1.0)
        for event in events
        if (update := number(event.get("update"))) is not None and (value := number(event.get(key))) is not None
    ]


def _evaluated(run: Run, name: str) -> list[tuple[float, float]]:
    """(update, value) of one metric on the validation data."""
    return [
        (update, value)
        for event in run.of("evaluation")
        if event.get("part") == "validation"
        and (update := number(event.get("update"))) is not None
        and (value := number(dig(event, "metrics", name))) is not None
    ]


def _curve(axes: "Axes", values: list[Point], color: str, label: str) -> None:
    if not values:
        return
    updates = [point.update for point in values]
    alone = "o" if len(values) == 1 else None
    axes.plot(updates, [point.mean for point in values], color=color, label=label, marker=alone, markersize=4)
    if any(point.low < point.high for point in values):
        lows, highs = [point.low for point in values], [point.high for point in values]
        axes.fill_between(updates, lows, highs, color=color, alpha=0.18, linewidth=0)


def _marked(axes: "Axes", run: Run, values: list[tuple[float, float]], color: str, label: str) -> None:
    """Evaluations: each a dot, the best so far a ring around it."""
    if not values:
        return
    updates, heights = zip(*values, strict=True)
    axes.plot(updates, heights, color=color, marker="o", markersize=3.2, label=label)
    best = [event.get("update") for event in run.of("evaluation") if event.get("best") is True][-1:]
    ringed = [value for value in values if value[0] in best]
    if ringed:
        axes.plot(*ringed[0], color=color, marker="o", markersize=8, fillstyle="none", linestyle="none", label="best")


def _level(axes: "Axes", height: float, text: str, *, color: str = svg.MUTED) -> None:
    """A horizontal line that carries its meaning."""
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


def _range(axes: "Axes", low: float, high: float) -> None:
    """What the plan held possible."""
    axes.axhspan(low, high, color=svg.MUTED, alpha=0.12, linewidth=0)


def _session_starts(axes: "Axes", run: Run) -> None:
    for event in run.of("session")[1:]:
        if (update := number(event.get("update"))) is not None:
            axes.axvline(update, color=svg.MUTED, linewidth=0.9, linestyle=(0, (1, 3)), zorder=1)


def _finish(axes: "Axes", run: Run, unit: str, *, from_zero: bool = False) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("update")
    axes.set_ylabel(unit)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.set_xlim(left=0, right=_last_update(run))
    axes.margins(y=0.12)
    if from_zero:
        axes.set_ylim(bottom=0)


def _last_update(run: Run) -> float:
    """Where the axis ends: a hair beyond the last update there is."""
    return 1.01 * max([number(event.get("update")) or 0 for event in run.current] + [1])
