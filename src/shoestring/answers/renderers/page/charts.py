"""The drawings of a page, painted by matplotlib."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from shoestring.answers.document import (
    BarChart,
    Breakdown,
    Drawing,
    Histogram,
    Level,
    LineChart,
    Matrix,
    Series,
    Timeline,
    is_steep,
)
from shoestring.answers.renderers.markup import EMPTY, Markup
from shoestring.answers.renderers.page import svg
from shoestring.base.units import GIB, MIB, bytes_text, count_text, seconds_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_LABEL = 60
"""Characters of a name in a figure."""
COLORS = {
    "blue": svg.BLUE,
    "orange": svg.ORANGE,
    "green": svg.GREEN,
    "vermillion": svg.VERMILLION,
    "purple": svg.PURPLE,
    "sky": svg.SKY,
    "yellow": svg.YELLOW,
    "muted": svg.MUTED,
}
PART_COLORS = (svg.BLUE, svg.ORANGE, svg.GREEN, svg.PURPLE, svg.SKY, svg.VERMILLION, svg.YELLOW, svg.MUTED)
STATUS_COLORS = {
    "finished": svg.GREEN,
    "paused": svg.BLUE,
    "failed": svg.VERMILLION,
    "killed": svg.MUTED,
    "running": svg.ORANGE,
}
_WIDE, _HALF = (720.0, 250.0), (360.0, 190.0)
"""Width and height of a figure in points."""
_CLASSES_WIDTH = 420.0
_LEGEND_CHARACTERS = 110
"""Of one line of the legend above a wide figure."""
_MAX_PARTS = 100
_DARK_SHARE = 0.55
"""The share of a row from which its cell is so dark that its number is drawn in the color of the page."""
_DAY = 86400
"""Seconds; matplotlib counts dates in days since 1970."""


def line_chart(chart: LineChart) -> Markup:
    """Draw curves; empty if none has a value."""
    series = [curve for curve in chart.series if curve.points]
    if not series:
        return EMPTY
    lows = [point.low for curve in series for point in curve.points]
    highs = [point.high for curve in series for point in curve.points]
    is_logarithmic = chart.can_be_logarithmic and is_steep([*lows, *highs])

    def paint(axes: "Axes") -> None:
        for mark in chart.marks:
            axes.axvline(mark, color=svg.MUTED, linewidth=0.9, linestyle=(0, (1, 3)), zorder=1)
        for curve in series:
            _paint_curve(axes, curve)
        if chart.band:
            axes.axhspan(*chart.band, color=svg.MUTED, alpha=0.12, linewidth=0)
        for level in chart.levels:
            _paint_level(axes, level)
        if is_logarithmic:
            axes.set_yscale("log")
        _finish(axes, chart, is_logarithmic=is_logarithmic, highest=max(highs))
        if chart.has_legend:
            longest = max(len(curve.name[-MAX_LABEL:]) for curve in series)
            columns = max(1, min(max(3, len(series)), _LEGEND_CHARACTERS // (longest + 6)))
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=columns)

    return _draw(chart, paint, *(_WIDE if chart.is_wide else _HALF))


def _paint_curve(axes: "Axes", curve: Series) -> None:
    """Paint a curve with the range of its values, or single measurements as dots with a ring around the best one."""
    updates, heights = [point.x for point in curve.points], [point.y for point in curve.points]
    color = COLORS[curve.color]
    axes.plot(
        updates,
        heights,
        color=color,
        linestyle=curve.dash,
        marker="o" if curve.has_dots or len(updates) == 1 else None,
        markersize=3.2 if curve.has_dots else 4,
        label=curve.name[-MAX_LABEL:],
    )
    if any(point.low < point.high for point in curve.points):
        lows, highs = [point.low for point in curve.points], [point.high for point in curve.points]
        axes.fill_between(updates, lows, highs, color=color, alpha=0.18, linewidth=0)
    for point in curve.points:
        if point.x == curve.best:
            ring = {"marker": "o", "markersize": 8, "fillstyle": "none", "linestyle": "none"}
            axes.plot(point.x, point.y, color=color, label="best", **ring)  # type: ignore[arg-type]


def _paint_level(axes: "Axes", level: Level) -> None:
    axes.axhline(level.y, color=COLORS[level.color], linestyle="--", linewidth=1)
    axes.annotate(
        level.text,
        (1, level.y),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        color=svg.MUTED,
        fontsize=8,
    )


def _finish(axes: "Axes", chart: LineChart, *, is_logarithmic: bool, highest: float) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(chart.x)
    axes.set_ylabel(chart.y[:MAX_LABEL])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=chart.x == "update", steps=[1, 2, 5, 10]))
    if chart.is_scientific:
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4))
    elif is_logarithmic or highest >= 1000:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.set_xlim(left=0, right=chart.end)
    axes.margins(y=0.12)
    if chart.is_from_zero:
        axes.set_ylim(bottom=0)


def breakdown(parts: Breakdown) -> Markup:
    """Draw the parts as one bar, with the range of their sum, what was measured, and the capacity."""
    if not parts.parts:
        return EMPTY
    total, low, high = parts.peak, parts.low, max(parts.peak, parts.high)
    measured, capacity = parts.measured or 0, parts.capacity
    unit, unit_name = (GIB, "GiB") if total >= GIB else (MIB, "MiB")

    def paint(axes: "Axes") -> None:
        left = 0.0
        for index, part in enumerate(parts.parts[:_MAX_PARTS]):
            color = PART_COLORS[index % len(PART_COLORS)]
            label = f"{part.name[:MAX_LABEL]}  {bytes_text(part.bytes)}"
            width = part.bytes / unit
            axes.barh(0, width, left=left / unit, color=color, edgecolor=svg.CARD, linewidth=0.8, label=label)
            left += part.bytes
        axes.plot([low / unit, high / unit], [0.62, 0.62], color=svg.INK, linewidth=1, marker="|", markersize=6)
        _caption(axes, total / unit, 0.72, f"planned {bytes_text(total)} ({bytes_text(low)} to {bytes_text(high)})")
        if measured:
            axes.plot(measured / unit, -0.58, color=svg.INK, marker="^", markersize=6, clip_on=False)
            _caption(axes, measured / unit, -0.98, f"measured {bytes_text(measured)}")
        right = max(high, measured) * 1.15
        if capacity and capacity < 3 * right:
            right = max(right, capacity * 1.04)
            axes.axvline(capacity / unit, color=svg.VERMILLION, linewidth=1.4, linestyle="--")
            _caption(axes, capacity / unit, 1.1, f"capacity {bytes_text(capacity)}", align="right")
        elif capacity:
            note = f"capacity {bytes_text(capacity)}, beyond the axis \N{RIGHTWARDS ARROW}"
            _caption(axes, right / unit, 1.1, note, align="right")
        axes.set(xlim=(0, right / unit), ylim=(-1.2, 1.5), yticks=[], xlabel=unit_name)
        axes.grid(False)
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.32), ncols=4, handlelength=0.9, handleheight=0.9)

    return _draw(parts, paint, 720, 150 + 14 * -(-len(parts.parts) // 4))


def _caption(axes: "Axes", x: float, y: float, text: str, *, align: str = "center") -> None:
    offset = (-4 if align == "right" else 0, 0)
    axes.annotate(text, (x, y), xytext=offset, textcoords="offset points", ha=align, color=svg.MUTED, fontsize=8)


def timeline(line: Timeline) -> Markup:
    """Draw intervals over wall-clock time, colored by their status."""
    if not line.intervals:
        return EMPTY

    def paint(axes: "Axes") -> None:
        start = line.intervals[0].start
        end = max(start + 60, *(interval.end for interval in line.intervals))
        # The bar of a session that just started stays visible.
        shortest = max((end - start) / 400, 1.0)
        labeled_statuses = set()
        for interval in line.intervals:
            length = max(interval.end - interval.start, shortest) / _DAY
            axes.barh(
                0,
                length,
                left=interval.start / _DAY,
                height=0.8,
                color=STATUS_COLORS.get(interval.status, svg.MUTED),
                alpha=0.9,
                label="" if interval.status in labeled_statuses else interval.status,
            )
            labeled_statuses.add(interval.status)
            middle = interval.start / _DAY + length / 2
            axes.text(middle, 0.55, interval.name, ha="center", color=svg.MUTED, fontsize=8)
        killed = [interval.end / _DAY for interval in line.intervals if interval.ends_with_a_kill]
        if killed:
            axes.plot(
                killed, [0] * len(killed), color=svg.INK, marker="x", linestyle="none", label="killed here", zorder=3
            )
        moments = [moment / _DAY for interval in line.intervals for moment in interval.moments]
        if moments:
            heights = [-0.56] * len(moments)
            marker = {"marker": "|", "linestyle": "none", "markersize": 5}
            axes.plot(moments, heights, color=svg.INK, label=line.moments, **marker)  # type: ignore[arg-type]
        for pause_start, pause_end in line.pauses:
            if pause_end - pause_start > 0.1 * (end - start):
                middle = (pause_start / _DAY + pause_end / _DAY) / 2
                text = seconds_text(pause_end - pause_start)
                axes.text(middle, 0, text, ha="center", va="center", color=svg.MUTED, fontsize=8)
        axes.xaxis_date("UTC")
        margin = max((end - start) * 0.02, shortest) / _DAY
        axes.set(
            xlim=(start / _DAY - margin, end / _DAY + margin), ylim=(-0.9, 0.95), yticks=[], xlabel="wall clock (UTC)"
        )
        axes.grid(False)
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=7, handlelength=0.9, handleheight=0.9)

    return _draw(line, paint, 720, 120)


def matrix(counts: Matrix) -> Markup:
    """Draw counts of pairs, shaded by the share of a row."""

    def paint(axes: "Axes") -> None:
        from matplotlib.patches import Rectangle

        for row, values in enumerate(counts.counts):
            for column, value in enumerate(values):
                share = value / (sum(values) or 1)
                corner = (column - 0.5, row - 0.5)
                axes.add_patch(Rectangle(corner, 1, 1, facecolor=svg.BLUE, alpha=share, linewidth=0))
                color = svg.CARD if share > _DARK_SHARE else svg.INK if value else svg.MUTED
                axes.text(column, row, count_text(round(value)), ha="center", va="center", color=color, fontsize=8)
        positions, size = range(len(counts.names)), len(counts.names)
        axes.set_xticks(positions, list(counts.names), rotation=40, ha="right")
        axes.set_yticks(positions, list(counts.names))
        axes.set(xlim=(-0.5, size - 0.5), ylim=(size - 0.5, -0.5), xlabel=counts.columns, ylabel=counts.rows)
        axes.grid(False)

    return _draw(counts, paint, _CLASSES_WIDTH, 110 + 22.0 * len(counts.names))


def bar_chart(bars: BarChart) -> Markup:
    """Draw a group of horizontal bars for each category."""

    def paint(axes: "Axes") -> None:
        size = len(bars.categories)
        for place, (name, color, values) in enumerate(bars.series):
            positions = [index + (place - (len(bars.series) - 1) / 2) * 0.27 for index in range(size)]
            axes.barh(positions, list(values), height=0.24, color=COLORS[color], label=name)
        axes.set_yticks(range(size), list(bars.categories))
        axes.set(xlim=(0, 1), ylim=(size - 0.5, -0.5))
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3)

    return _draw(bars, paint, _CLASSES_WIDTH, 110 + 22.0 * len(bars.categories))


def histogram(counts: Histogram) -> Markup:
    """Draw the number of values between neighbouring edges."""

    def paint(axes: "Axes") -> None:
        widths = [high - low or 1 for low, high in pairwise(counts.edges)]
        heights: Sequence[float] = counts.counts
        edges = list(counts.edges[:-1])
        axes.bar(edges, heights, width=widths, align="edge", color=svg.BLUE, edgecolor=svg.CARD, linewidth=0.8)
        axes.set_xlabel(counts.x[:MAX_LABEL])
        axes.set_ylabel(counts.y)

    return _draw(counts, paint, *_HALF)


def _draw(drawing: Drawing, paint: svg.Paint, width: float, height: float) -> Markup:
    return svg.draw(drawing.label or drawing.title, paint, width=width, height=height)
