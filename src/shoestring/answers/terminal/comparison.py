"""The comparison of plans for several targets in a terminal."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shoestring.answers.terminal.elements import bar, settings_text, verdict
from shoestring.base.streams import one_line
from shoestring.base.units import seconds_text
from shoestring.planning.comparison import Comparison


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
    return Group(*_cheapest(comparison), table, Text("\n".join(notes)), *_first(comparison))


def _cheapest(comparison: Comparison) -> Iterator[RenderableType]:
    """Yield which target is the cheapest that is done in time, and what to type."""
    if comparison.by_hours is None:
        return
    limit = seconds_text(comparison.by_hours * 3600)
    plan = comparison.cheapest
    if plan is None:
        yield Text(f"No target with a known price is done within {limit}.", style="bold")
        return
    assert plan.cost_usd is not None and plan.calendar_hours is not None
    cost = f"{plan.cost_usd:.2f} US$" if plan.cost_usd else "free of charge"
    duration = seconds_text(plan.calendar_hours * 3600)
    sentence = f"The cheapest that is done within {limit} is {plan.target.name}: {cost}, after {duration}. Type"
    yield Text(sentence, style="bold")
    for answer in plan.answers[-1:]:
        yield Text(f"  {one_line(answer.command)}", style="bold", no_wrap=True, overflow="ignore")
    yield Text()


def _first(comparison: Comparison) -> Iterator[RenderableType]:
    """Yield which machines of a platform finish first, and what to type."""
    if comparison.platform is None:
        return
    yield Text("\n" + "\n".join(comparison.sentences) + ("\nType" if comparison.command else ""), style="bold")
    if comparison.command:
        yield Text(f"  {one_line(comparison.command)}", style="bold", no_wrap=True, overflow="ignore")


def _seconds(value: float | None) -> str:
    return "unknown" if value is None else seconds_text(value)


def _count(value: int | None) -> str:
    return "–" if value is None else str(value)


def _cost(row: Mapping[str, Any]) -> str:
    if row["usd_per_hour"] is None:
        return "unknown"
    return f"{row['usd_per_hour']:g} an hour" if row["usd"] is None else f"{row['usd']:.2f}"
