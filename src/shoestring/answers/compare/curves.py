"""Curves of several runs over each other."""

from collections.abc import Callable, Sequence

from shoestring.answers.compare.compared import ComparedRun
from shoestring.answers.document import LineChart, Point, Series
from shoestring.answers.report import curves
from shoestring.answers.report.curves import downsample, event_values, validation_values
from shoestring.answers.values import lookup, words
from shoestring.base.reading import number

_UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def training_loss(runs: Sequence[ComparedRun]) -> LineChart:
    """Return the loss in training over the updates."""
    lines = [_means(event_values(compared.run.events_of("progress"), "loss", weight="updates")) for compared in runs]
    return LineChart(
        title="Loss in training",
        caption="Means of neighbouring updates.",
        label="Loss in training over the updates",
        series=_series(runs, lines),
        x="update",
        y="loss",
        is_wide=True,
        has_legend=True,
        can_be_logarithmic=True,
    )


def validation_loss(runs: Sequence[ComparedRun]) -> LineChart:
    """Return the loss on validation data over the updates."""
    return LineChart(
        title="Loss on validation data",
        label="Loss on validation data over the updates",
        series=_series(runs, [validation_values(compared.run, "loss") for compared in runs], has_dots=True),
        x="update",
        y="loss",
        is_wide=True,
        has_legend=True,
        can_be_logarithmic=True,
    )


def loss_over_time(runs: Sequence[ComparedRun]) -> LineChart:
    """Return the loss over the time of the sessions: on validation data if all runs have it, else in training."""
    validation = [
        _over_time(compared, "evaluation", lambda event: lookup(event, "metrics", "loss")) for compared in runs
    ]
    is_validation = all(validation)
    lines = (
        validation
        if is_validation
        else [_over_time(compared, "progress", lambda event: event.get("loss")) for compared in runs]
    )
    longest = max((point.x for line in lines for point in line), default=0.0)
    seconds, unit = next(((length, name) for length, name in _UNITS if longest >= length), _UNITS[-1])
    scaled = [[Point(point.x / seconds, point.y, point.y, point.y) for point in line] for line in lines]
    return LineChart(
        title="Loss over time",
        caption="Of the sessions; pauses between them do not count.",
        label=f"Loss {'on validation data' if is_validation else 'in training'} over the time of the sessions",
        series=_series(runs, scaled, has_dots=is_validation),
        x=unit,
        y="loss",
        is_wide=True,
        has_legend=True,
        can_be_logarithmic=True,
    )


def common_metrics(runs: Sequence[ComparedRun]) -> tuple[list[str], list[str]]:
    """Return the validation metrics that all runs have, and those that only some have."""
    names = [curves.metric_names(compared.run) for compared in runs]
    union = list(dict.fromkeys(name for run_names in names for name in run_names))
    common = [name for name in union if all(name in run_names for run_names in names)]
    return common, [name for name in union if name not in common]


def metric(runs: Sequence[ComparedRun], name: str) -> LineChart:
    """Return a metric on validation data over the updates."""
    return LineChart(
        title=words(name),
        caption="On validation data",
        label=f"{words(name)} on validation data",
        series=_series(runs, [validation_values(compared.run, name) for compared in runs], has_dots=True),
        x="update",
        y=words(name),
    )


def _over_time(compared: ComparedRun, kind: str, value: Callable[[dict[str, object]], object]) -> list[Point]:
    return _means(
        [
            (compared.elapsed(event), parsed, number(event.get("updates")) or 1.0)
            for event in compared.run.events_of(kind)
            if event.get("part", "validation") == "validation" and (parsed := number(value(event))) is not None
        ]
    )


def _means(values: Sequence[tuple[float, float, float]]) -> list[Point]:
    """Return the means of neighbouring values without their ranges, which would cover each other."""
    return [Point(point.x, point.y, point.y, point.y) for point in downsample(values)]


def _series(runs: Sequence[ComparedRun], lines: Sequence[Sequence[Point]], *, has_dots: bool = False) -> list[Series]:
    return [
        Series(name=compared.name, points=line, color=compared.color, dash=compared.line, has_dots=has_dots)
        for compared, line in zip(runs, lines, strict=True)
    ]
