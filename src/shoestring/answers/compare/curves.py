"""Curves of several runs over each other."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from shoestring.answers.compare.compared import ComparedRun
from shoestring.answers.renderers.markup import EMPTY, Markup
from shoestring.answers.renderers.page import svg
from shoestring.answers.report import curves
from shoestring.answers.report.curves import HALF, MAX_LABEL, WIDE, downsample, event_values, validation_values
from shoestring.answers.values import lookup, words
from shoestring.base.reading import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Line = list[tuple[float, float]]
"""Points (x, y)."""

_LEGEND_CHARACTERS = 110
"""Of one line of the legend above a wide figure."""
_UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def training_loss(runs: Sequence[ComparedRun]) -> Markup:
    """Draw the loss in training over the updates."""
    lines = [
        [
            (point.update, point.mean)
            for point in downsample(event_values(compared.run.events_of("progress"), "loss", weight="updates"))
        ]
        for compared in runs
    ]
    return _draw("Loss in training over the updates", runs, lines, x="update", y="loss", size=WIDE)


def validation_loss(runs: Sequence[ComparedRun]) -> Markup:
    """Draw the loss on validation data over the updates."""
    lines = [validation_values(compared.run, "loss") for compared in runs]
    return _draw("Loss on validation data over the updates", runs, lines, x="update", y="loss", size=WIDE, marker="o")


def loss_over_time(runs: Sequence[ComparedRun]) -> Markup:
    """Draw the loss over the time of the sessions: on validation data if all runs have it, else in training."""
    validation = [
        _over_time(compared, "evaluation", lambda event: lookup(event, "metrics", "loss")) for compared in runs
    ]
    is_validation = all(validation)
    lines = (
        validation
        if is_validation
        else [_over_time(compared, "progress", lambda event: event.get("loss")) for compared in runs]
    )
    longest = max((x for line in lines for x, _ in line), default=0.0)
    unit_seconds, unit = next(((length, name) for length, name in _UNITS if longest >= length), _UNITS[-1])
    scaled = [[(x / unit_seconds, y) for x, y in line] for line in lines]
    data = "on validation data" if is_validation else "in training"
    return _draw(
        f"Loss {data} over the time of the sessions",
        runs,
        scaled,
        x=unit,
        y="loss",
        size=WIDE,
        marker="o" if is_validation else None,
    )


def common_metrics(runs: Sequence[ComparedRun]) -> tuple[list[str], list[str]]:
    """Return the validation metrics that all runs have, and those that only some have."""
    names = [curves.metric_names(compared.run) for compared in runs]
    union = list(dict.fromkeys(name for run_names in names for name in run_names))
    common = [name for name in union if all(name in run_names for run_names in names)]
    return common, [name for name in union if name not in common]


def metric(runs: Sequence[ComparedRun], name: str) -> Markup:
    """Draw a metric on validation data over the updates."""
    lines = [validation_values(compared.run, name) for compared in runs]
    label = f"{words(name)} on validation data"
    return _draw(label, runs, lines, x="update", y=words(name), size=HALF, marker="o", has_legend=False)


def _over_time(compared: ComparedRun, kind: str, value: Callable[[dict[str, object]], object]) -> Line:
    points = [
        (compared.elapsed(event), parsed, number(event.get("updates")) or 1.0)
        for event in compared.run.events_of(kind)
        if event.get("part", "validation") == "validation" and (parsed := number(value(event))) is not None
    ]
    return [(point.update, point.mean) for point in downsample(points)]


def _draw(
    label: str,
    runs: Sequence[ComparedRun],
    lines: Sequence[Line],
    *,
    x: str,
    y: str,
    size: tuple[float, float],
    marker: str | None = None,
    has_legend: bool = True,
) -> Markup:
    """Draw a line for each run that has one."""
    if not any(lines):
        return EMPTY
    heights = [height for line in lines for _, height in line]

    def paint(axes: "Axes") -> None:
        from matplotlib.ticker import MaxNLocator

        for compared, line in zip(runs, lines, strict=True):
            if line:
                axes.plot(
                    *zip(*line, strict=True),
                    color=compared.color,
                    linestyle=compared.line,
                    marker="o" if len(line) == 1 else marker,
                    markersize=2.6,
                    label=compared.name[-MAX_LABEL:],
                )
        # On a linear scale, a loss that falls by orders of magnitude is a steep drop and a flat line.
        if min(heights) > 0 and max(heights) > 50 * min(heights):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel(x)
        axes.set_ylabel(y[:MAX_LABEL])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.xaxis.set_major_locator(MaxNLocator(integer=x == "update", steps=[1, 2, 5, 10]))
        axes.set_xlim(left=0)
        axes.margins(y=0.12)
        if has_legend:
            longest = max(len(compared.name[-MAX_LABEL:]) for compared in runs)
            columns = max(1, min(len(runs), _LEGEND_CHARACTERS // (longest + 6)))
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=columns)

    return svg.draw(label, paint, width=size[0], height=size[1])
