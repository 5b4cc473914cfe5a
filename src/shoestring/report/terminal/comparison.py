"""The comparison of plans for several targets in a terminal."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shoestring.plan.comparison import Comparison
from shoestring.report.terminal.elements import bar, settings_text, verdict
from shoestring.units import seconds_text


def screen(comparison: Comparison) -> RenderableType:
    """Show a row for each target with a time bar, then the settings, and the changes that would make a plan fit."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("target", "verdict", "per update", "total", "", "sessions", "weeks", "US$"):
        table.add_column(name, no_wrap=bool(name), overflow="crop")  # a narrow terminal crops the bars
    longest = max((row["hours"] or row["update_seconds"] or 0 for row in comparison.rows()), default=0)
    for row in comparison.rows():
        amount = row["hours"] or row["update_seconds"]
        table.add_row(
            row["target"],
            verdict(row["verdict"]),
            _seconds(row["update_seconds"]),
            _seconds(row["hours"] and row["hours"] * 3600),
            bar(amount / longest / 2) if amount and longest else "",
            _count(row["sessions"]),
            _count(row["weeks"]),
            _cost(row),
        )
    notes = [f"{plan.target.name}: {settings_text(plan.settings.json())}" for plan in comparison.plans]
    notes += [f"{plan.target.name}: {change}" for plan in comparison.plans for change in plan.changes]
    price_dates = sorted(
        {plan.price.date for plan in comparison.plans if plan.price and plan.price.usd_per_hour and plan.price.date}
    )
    if price_dates:
        notes.append(f"list prices as of {', '.join(price_dates)}; --price overrides them")
    return Group(table, Text("\n".join(notes)))


def _seconds(value: float | None) -> str:
    return "unknown" if value is None else seconds_text(value)


def _count(value: int | None) -> str:
    return "–" if value is None else str(value)


def _cost(row: Mapping[str, Any]) -> str:
    if row["usd_per_hour"] is None:
        return "unknown"
    return f"{row['usd_per_hour']:g} an hour" if row["usd"] is None else f"{row['usd']:.2f}"
