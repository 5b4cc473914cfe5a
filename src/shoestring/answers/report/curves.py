"""Curves over the updates of a run: loss, metrics, rewards, learning rate, throughput and memory."""

from collections.abc import Iterable, Sequence

from shoestring.answers.document import Color, Level, LineChart, Point, Series
from shoestring.answers.metrics import BASELINE, is_qualifier
from shoestring.answers.report.run import Run
from shoestring.answers.values import lookup, metric_text, numbers, words
from shoestring.base.reading import number
from shoestring.base.units import GIB, MIB, bytes_text
from shoestring.training.monitor.events import Event
from shoestring.training.monitor.progress import is_reward

_MAX_POINTS = 300


def downsample(values: Sequence[tuple[float, float, float]], max_points: int = _MAX_POINTS) -> list[Point]:
    """Reduce the (update, value, weight) triples of a curve to about `max_points` points at most.

    A point is a group of neighbouring values: the last update, the weighted mean, the minimum and the maximum.
    """
    step = max(1, -(-len(values) // max_points))
    return [_point(values[first : first + step]) for first in range(0, len(values), step)]


def loss(run: Run) -> LineChart:
    """Return the training and validation loss on one scale."""
    training = downsample(event_values(run.events_of("progress"), "loss", weight="updates"))
    return LineChart(
        title="Loss",
        caption="Shaded: minimum to maximum. Dotted: session start.",
        label=f"Loss of {run.name} over its updates",
        is_wide=True,
        series=[
            Series(name="training", points=training, color="blue"),
            _evaluations(run, validation_values(run, "loss"), "validation"),
        ],
        x="update",
        y="loss",
        marks=_session_starts(run),
        end=_last_update(run),
        has_legend=True,
        can_be_logarithmic=True,
    )


def metric_names(run: Run) -> list[str]:
    """Return the validation metrics to draw: numbers other than the loss, baselines and errors."""
    names: dict[str, None] = {}
    for event in run.events_of("evaluation"):
        if event.get("part") == "validation":
            names.update(dict.fromkeys(numbers(event.get("metrics"))))
    return [name for name in names if name != "loss" and not is_qualifier(name)]


def metric(run: Run, name: str) -> LineChart:
    """Return one metric on validation data, with its majority baseline if there is one."""
    baseline = validation_values(run, BASELINE + name)
    levels = [Level(baseline[-1].y, f"most frequent class {metric_text(baseline[-1].y)}")] if baseline else []
    return LineChart(
        title=words(name),
        caption="On validation data",
        label=f"{words(name)} on validation data",
        series=[_evaluations(run, validation_values(run, name), "validation")],
        x="update",
        y=words(name),
        levels=levels,
        end=_last_update(run),
    )


def reward_names(run: Run) -> list[str]:
    """Return the rewards that a trainer has logged."""
    names: dict[str, None] = {}
    for event in run.events_of("progress"):
        names.update(dict.fromkeys(filter(is_reward, numbers(event.get("metrics")))))
    return list(names)


def reward(run: Run, name: str) -> LineChart:
    """Return one reward over the updates."""
    values = [
        (update, value, 1.0)
        for event in run.events_of("progress")
        if (update := number(event.get("update"))) is not None
        and (value := number(lookup(event, "metrics", name))) is not None
    ]
    return LineChart(
        title=words(name),
        caption="As logged in training",
        label=f"{words(name)} of training",
        series=[Series(name=words(name), points=downsample(values), color="blue")],
        x="update",
        y=words(name),
        end=_last_update(run),
    )


def learning_rate(run: Run) -> LineChart:
    return _progress_value(run, "learning_rate", "Learning rate", "Learning rate over the updates")


def gradient_norm(run: Run) -> LineChart:
    return _progress_value(
        run, "gradient_norm", "Gradient norm", "Norm of the gradient over the updates", "Before clipping"
    )


def throughput(run: Run) -> LineChart:
    """Return the measured samples per second while training, and the planned rate."""
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
    batch = number(lookup(run.plan, "options", "effective_batch"))
    planned = numbers(lookup(run.plan, "plan", "time"))
    update_seconds = planned.get("update_seconds")
    ends = [planned.get(f"{end}_update_seconds") or update_seconds for end in ("high", "low")]
    planned_rates = [number(batch / seconds) for seconds in (*ends, update_seconds) if batch and seconds]
    band, levels = None, []
    match planned_rates:
        case [float(slowest), float(fastest), float(likely)]:
            band, levels = (slowest, fastest), [Level(likely, "planned")]
    return LineChart(
        title="Throughput",
        caption="Training only, without saving and evaluating",
        label="Training samples per second over the updates",
        series=[Series(name="measured", points=measured, color="green")],
        x="update",
        y="samples / s",
        levels=levels,
        band=band,
        marks=_session_starts(run),
        end=_last_update(run),
        is_from_zero=True,
    )


def memory(run: Run) -> LineChart:
    """Return the measured memory, and the planned peak with its range."""
    planned = numbers(lookup(run.plan, "plan", "memory"))
    peak, capacity = planned.get("peak_bytes"), planned.get("capacity_bytes")
    series = event_values(run.events_of("progress"), "memory_bytes")
    highest = max([value for _, value, _ in series] + ([peak] if peak else []), default=0.0)
    unit, unit_name = (GIB, "GiB") if highest >= GIB else (MIB, "MiB")
    measured = downsample([(update, value / unit, weight) for update, value, weight in series])
    levels = [Level(peak / unit, f"planned peak {bytes_text(peak)}")] if peak else []
    if capacity and capacity < 2 * highest:
        levels.append(Level(capacity / unit, f"capacity {bytes_text(capacity)}", "vermillion"))
    band = (planned.get("low_bytes", peak) / unit, planned.get("high_bytes", peak) / unit) if peak else None
    return LineChart(
        title="Memory",
        caption="Reserved GPU memory, or resident memory on a CPU",
        label="Memory in use over the updates",
        series=[Series(name="measured", points=measured, color="purple")],
        x="update",
        y=unit_name,
        levels=levels,
        band=band,
        end=_last_update(run),
        is_from_zero=True,
    )


def _progress_value(run: Run, key: str, title: str, label: str, caption: str = "") -> LineChart:
    """Return a number of the progress events on an axis from zero."""
    return LineChart(
        title=title,
        caption=caption,
        label=label,
        series=[Series(name=words(key), points=downsample(event_values(run.events_of("progress"), key)), color="blue")],
        x="update",
        y=words(key),
        end=_last_update(run),
        is_from_zero=True,
        is_scientific=True,
    )


def _point(values: Sequence[tuple[float, float, float]]) -> Point:
    weights = sum(weight for *_, weight in values)
    heights = [value for _, value, _ in values]
    mean = sum(value * weight for _, value, weight in values) / weights if weights else sum(heights) / len(heights)
    return Point(x=values[-1][0], y=mean, low=min(heights), high=max(heights))


def event_values(events: Iterable[Event], key: str, weight: str | None = None) -> list[tuple[float, float, float]]:
    """Return (update, value, weight) of every event that has the number `key`."""
    return [
        (update, value, (number(event.get(weight)) or 0.0) if weight else 1.0)
        for event in events
        if (update := number(event.get("update"))) is not None and (value := number(event.get(key))) is not None
    ]


def validation_values(run: Run, name: str) -> list[Point]:
    """Return one metric for every evaluation on validation data, over the updates."""
    return [
        Point(update, value, value, value)
        for event in run.events_of("evaluation")
        if event.get("part") == "validation"
        and (update := number(event.get("update"))) is not None
        and (value := number(lookup(event, "metrics", name))) is not None
    ]


def _evaluations(run: Run, points: Sequence[Point], name: str, color: Color = "vermillion") -> Series:
    """Return evaluations as dots, of which the best one is marked."""
    best = [number(event.get("update")) for event in run.events_of("evaluation") if event.get("best") is True]
    return Series(name=name, points=points, color=color, has_dots=True, best=best[-1] if best else None)


def _session_starts(run: Run) -> list[float]:
    updates = (number(event.get("update")) for event in run.events_of("session")[1:])
    return [update for update in updates if update is not None]


def _last_update(run: Run) -> float:
    """Return the end of the axis, slightly beyond the last update."""
    return 1.01 * max([number(event.get("update")) or 0 for event in run.current] + [1])
