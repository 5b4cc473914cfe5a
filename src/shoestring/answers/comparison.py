"""The comparison of plans for several targets."""

from collections.abc import Iterator, Mapping
from typing import Any

from shoestring.answers import plan as plans
from shoestring.answers.document import (
    GAP,
    Bar,
    Cell,
    Column,
    Command,
    Document,
    Element,
    Items,
    Paragraph,
    Section,
    Status,
    Table,
)
from shoestring.answers.wording import settings_text
from shoestring.base.units import bytes_text, plural, seconds_text
from shoestring.planning.comparison import Comparison

_WIDE = 140
"""Characters from which on there is space for the memory."""
_COLUMNS = (
    Column("target", can_wrap=False),
    Column("verdict", can_wrap=False),
    Column("memory at most", can_wrap=False, least_width=_WIDE),
    Column(least_width=_WIDE),
    Column("per update", is_numeric=True, can_wrap=False),
    Column("total", is_numeric=True, can_wrap=False),
    Column(),
    Column("sessions", is_numeric=True, can_wrap=False),
    Column("weeks", is_numeric=True, can_wrap=False),
    Column("US$", is_numeric=True, can_wrap=False),
)


def document(comparison: Comparison) -> Document:
    """Return a row for each target with bars, then the settings, the changes that would make a plan fit, and plans."""
    amounts = [row["hours"] or row["update_seconds"] or 0 for row in comparison.rows()]
    longest = max(amounts, default=0)
    rows = [
        _cells(row, amount / longest if longest else 0) for row, amount in zip(comparison.rows(), amounts, strict=True)
    ]
    notes = [f"{plan.target.name}: {settings_text(plan.settings.json())}" for plan in comparison.plans]
    notes += [f"{plan.target.name}: {change}" for plan in comparison.plans for change in plan.changes]
    price_dates = sorted(
        {plan.price.date for plan in comparison.plans if plan.price and plan.price.usd_per_hour and plan.price.date}
    )
    if price_dates:
        notes.append(f"list prices as of {', '.join(price_dates)}; --price overrides them")
    return Document(
        title=comparison.plans[0].recipe if comparison.plans else "no plans",
        subtitle=f"on {plural(len(rows), 'target')}",
        sentences=[],
        content=[
            *_cheapest(comparison),
            Table(_COLUMNS, rows),
            Items(notes),
            *_first(comparison),
            *(
                Section(
                    f"The plan for {plan.target.name}: {plan.verdict}",
                    [plans.document(plan)],
                    is_folded=True,
                    is_extra=True,
                )
                for plan in comparison.plans
            ),
        ],
    )


def _cells(row: Mapping[str, Any], share: float) -> list[Cell]:
    high, capacity = row["high_bytes"], row["capacity_bytes"]
    return [
        row["target"],
        Status(row["verdict"]),
        f"{bytes_text(high)} of {bytes_text(capacity)}",
        Bar([high / max(1, capacity)]),
        _seconds(row["update_seconds"]),
        _seconds(row["hours"] and row["hours"] * 3600),
        Bar([share / 2]) if share else "",
        _count(row["sessions"]),
        _count(row["weeks"]),
        _cost(row),
    ]


def _cheapest(comparison: Comparison) -> Iterator[Element]:
    """Yield which target is the cheapest that is done in time, and what to type."""
    if comparison.by_hours is None:
        return
    limit = seconds_text(comparison.by_hours * 3600)
    plan = comparison.cheapest
    if plan is None:
        yield Paragraph(f"No target with a known price is done within {limit}.", "strong")
        return
    assert plan.cost_usd is not None and plan.calendar_hours is not None
    cost = f"{plan.cost_usd:.2f} US$" if plan.cost_usd else "free of charge"
    duration = seconds_text(plan.calendar_hours * 3600)
    sentence = f"The cheapest that is done within {limit} is {plan.target.name}: {cost}, after {duration}. Type"
    yield Paragraph(sentence, "strong")
    for answer in plan.answers[-1:]:
        yield Command(answer.command)
    yield GAP


def _first(comparison: Comparison) -> Iterator[Element]:
    """Yield which machines of a platform finish first, and what to type."""
    if comparison.platform is None:
        return
    yield GAP
    for sentence in (*comparison.sentences, *(["Type"] if comparison.command else [])):
        yield Paragraph(sentence, "strong")
    if comparison.command:
        yield Command(comparison.command)


def _seconds(value: float | None) -> str:
    return "unknown" if value is None else seconds_text(value)


def _count(value: int | None) -> str:
    return "–" if value is None else str(value)


def _cost(row: Mapping[str, Any]) -> str:
    if row["usd_per_hour"] is None:
        return "unknown"
    return f"{row['usd_per_hour']:g} an hour" if row["usd"] is None else f"{row['usd']:.2f}"
