"""The display of a comparison: a row for each target, and each plan folded below."""

from collections.abc import Mapping, Sequence
from typing import Any

from shoestring.answers.markup import Content, Markup, element
from shoestring.answers.notebook import drawing
from shoestring.answers.notebook.layout import BLUE, FAINT, RED, box, code, fold, pill, table
from shoestring.answers.notebook.plan import render as render_plan
from shoestring.answers.values import UNKNOWN
from shoestring.base import display
from shoestring.base.units import bytes_text, plural, seconds_text
from shoestring.planning.comparison import Comparison

_COLUMNS = ("target", "verdict", "memory", "time per update", "total time", "sessions", "weeks", "US$")


@display.html.register
def render(comparison: Comparison) -> Markup:
    """Render the targets side by side, followed by every plan in full."""
    recipe = comparison.plans[0].recipe if comparison.plans else "no plans"
    rows = [_cells(row) for row in comparison.rows()]
    plans = [fold(f"The plan for {plan.target.name}: {plan.verdict}", render_plan(plan)) for plan in comparison.plans]
    return box(
        recipe,
        "",
        f"on {plural(len(rows), 'target')}",
        element("div", table(rows, _COLUMNS, numeric=range(3, 8)), style="margin:10px 0"),
        [element("div", sentence) for sentence in comparison.sentences],
        code(comparison.command) if comparison.command else "",
        plans,
    )


def _cells(row: Mapping[str, Any]) -> Sequence[Content]:
    durations = (row["update_seconds"], row["total_seconds"])
    return (
        element("b", row["target"]),
        pill(row["verdict"]),
        _memory(row["high_bytes"], row["capacity_bytes"]),
        *("unknown" if duration is None else seconds_text(duration) for duration in durations),
        *(UNKNOWN if row[name] is None else str(row[name]) for name in ("sessions", "weeks")),
        "unknown" if row["usd"] is None else f"{row['usd']:.2f}",
    )


def _memory(high_bytes: int, capacity_bytes: int) -> Markup:
    """Return the upper bound of the memory, as text and as a bar."""
    share = high_bytes / max(1, capacity_bytes)
    bar = drawing.bar([(BLUE if share <= 1 else RED, min(1.0, share))], height=8, least="2px")
    text = f"up to {bytes_text(high_bytes)} of {bytes_text(capacity_bytes)}"
    return element("div", bar, element("span", text, style=FAINT))
