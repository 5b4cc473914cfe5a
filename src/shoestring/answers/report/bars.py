"""Bar figures: the parts of the planned memory, and the timeline of the sessions."""

from typing import TYPE_CHECKING

from shoestring.answers.renderers.markup import EMPTY, Markup
from shoestring.answers.renderers.page import svg
from shoestring.answers.report.run import Run
from shoestring.answers.values import lookup, numbers
from shoestring.base.reading import number
from shoestring.base.units import GIB, MIB, bytes_text, seconds_text
from shoestring.training.session.ledger import SessionRecord, pauses

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PART_COLORS = (svg.BLUE, svg.ORANGE, svg.GREEN, svg.PURPLE, svg.SKY, svg.VERMILLION, svg.YELLOW, svg.MUTED)
_MAX_PARTS, _MAX_LABEL = 100, 60
"""The number of parts that are drawn, and of the characters of their names."""
DAY = 86400
"""Seconds; matplotlib counts dates in days since 1970."""
STATUS_COLORS = {
    "finished": svg.GREEN,
    "paused": svg.BLUE,
    "failed": svg.VERMILLION,
    "killed": svg.MUTED,
    "running": svg.ORANGE,
}


def memory_parts(run: Run) -> Markup:
    """Draw the planned peak as one bar of parts, with its range, the measured peak and the capacity."""
    memory = numbers(lookup(run.plan, "plan", "memory"))
    part_list = lookup(run.plan, "plan", "memory", "parts")
    parts = [
        (str(lookup(part, "name"))[:_MAX_LABEL], value)
        for part in (part_list[:_MAX_PARTS] if isinstance(part_list, list) else [])
        if (value := number(lookup(part, "bytes"))) is not None and value > 0
    ]
    if not parts:
        return EMPTY
    total = sum(value for _, value in parts)
    high = max(total, memory.get("high_bytes", total))
    measured = run.measured_bytes or 0
    capacity = memory.get("capacity_bytes")
    unit, unit_name = (GIB, "GiB") if total >= GIB else (MIB, "MiB")

    def paint(axes: "Axes") -> None:
        left = 0.0
        for index, (name, value) in enumerate(parts):
            color = PART_COLORS[index % len(PART_COLORS)]
            label = f"{name}  {bytes_text(value)}"
            axes.barh(0, value / unit, left=left / unit, color=color, edgecolor=svg.CARD, linewidth=0.8, label=label)
            left += value
        low = memory.get("low_bytes", total)
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

    rows = -(-len(parts) // 4)
    return svg.draw("Parts of the planned memory", paint, width=720, height=150 + 14 * rows)


def timeline(session_records: list[SessionRecord]) -> Markup:
    """Draw the sessions over wall-clock time, colored by their final status."""
    if not session_records:
        return EMPTY

    def paint(axes: "Axes") -> None:
        start = session_records[0].start
        end = max(start + 60, *(session.end for session in session_records))
        # The bar of a session that just started stays visible.
        shortest = max((end - start) / 400, 1.0)
        labeled_statuses = set()
        for session in session_records:
            length = max(session.end - session.start, shortest) / DAY
            axes.barh(
                0,
                length,
                left=session.start / DAY,
                height=0.8,
                color=STATUS_COLORS.get(session.ended, svg.MUTED),
                alpha=0.9,
                label="" if session.ended in labeled_statuses else session.ended,
            )
            labeled_statuses.add(session.ended)
            axes.text(
                session.start / DAY + length / 2, 0.55, str(session.number), ha="center", color=svg.MUTED, fontsize=8
            )
        killed = [session.end / DAY for session in session_records if session.ended == "killed"]
        if killed:
            axes.plot(
                killed, [0] * len(killed), color=svg.INK, marker="x", linestyle="none", label="killed here", zorder=3
            )
        saves = [save / DAY for session in session_records for save in session.saves]
        if saves:
            axes.plot(
                saves, [-0.56] * len(saves), color=svg.INK, marker="|", linestyle="none", markersize=5, label="save"
            )
        for pause_start, pause_end in pauses(session_records):
            if pause_end - pause_start > 0.1 * (end - start):
                middle = (pause_start / DAY + pause_end / DAY) / 2
                text = seconds_text(pause_end - pause_start)
                axes.text(middle, 0, text, ha="center", va="center", color=svg.MUTED, fontsize=8)
        axes.xaxis_date("UTC")
        margin = max((end - start) * 0.02, shortest) / DAY
        axes.set(
            xlim=(start / DAY - margin, end / DAY + margin), ylim=(-0.9, 0.95), yticks=[], xlabel="wall clock (UTC)"
        )
        axes.grid(False)
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=7, handlelength=0.9, handleheight=0.9)

    return svg.draw("Sessions on the wall clock", paint, width=720, height=120)


def _caption(axes: "Axes", x: float, y: float, text: str, *, align: str = "center") -> None:
    offset = (-4 if align == "right" else 0, 0)
    axes.annotate(text, (x, y), xytext=offset, textcoords="offset points", ha=align, color=svg.MUTED, fontsize=8)
