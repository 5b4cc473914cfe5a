"""A plan as a page in a terminal, and several side by side."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shoestring.plan.comparison import Comparison
from shoestring.plan.plan import Plan
from shoestring.plan.proposals import Proposal
from shoestring.report.terminal import bar, grid, headline, memory_bars, memory_text, settings_text
from shoestring.settings import Settings
from shoestring.units import bytes_text, seconds_text

_STYLES = {"fits": "bold green", "fits with changes": "bold yellow", "does not fit": "bold red"}


def plan(found: Plan) -> RenderableType:
    """A plan on one screen: the verdict first, then what it rests on."""
    facts = grid()
    facts.add_row("settings", settings_text(found.settings.json()))
    facts.add_row("", _effective_batch(found))
    facts.add_row("memory", memory_text(found.memory))
    facts.add_row("", memory_bars(found.memory))
    facts.add_row("time", _time_text(found))
    facts.add_row("sessions", _sessions_text(found))
    facts.add_row("disk", _disk_text(found))
    if found.cost_usd is not None and found.price and found.price.usd_per_hour:
        facts.add_row("cost", f"{found.cost_usd:.2f} US$ at {_price_text(found)}")
    facts.add_row("limits", _limits(found))
    for name, lines in (
        ("because", found.reasons),
        ("notes", found.facts.notes),
        ("would do", found.changes),
        ("advice", found.advice),
        ("or", tuple(_alternative_text(other, found.settings) for other in found.alternatives)),
    ):
        if lines:
            facts.add_row(name, Text("\n".join(lines)))
    facts.add_row("if memory ends", Text(" → ".join(found.ladder)))
    if found.proposals:
        facts.add_row("proposals", _proposals(found))
    for phase in found.phases:
        time = f", about {seconds_text(phase.seconds)}" if phase.seconds is not None else ""
        # One line that can be pasted, however narrow the terminal.
        facts.add_row(phase.name, Text(f"{phase.tells}{time}\n{phase.command}", overflow="fold"))
    return Group(
        headline(found.recipe, found.target, found.facts),
        Text(found.verdict, style=_STYLES[found.verdict]),
        facts,
    )


def comparison(found: Comparison) -> RenderableType:
    """One line for each target, the time as a bar; then settings, and what a plan that does not fit says would do."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("target", "verdict", "an update", "in all", "", "sessions", "weeks", "US$"):
        table.add_column(name, no_wrap=bool(name), overflow="crop")  # bars are cut where it is narrow
    longest = max((row["hours"] or row["update_seconds"] or 0 for row in found.rows()), default=0)
    for row in found.rows():
        amount = row["hours"] or row["update_seconds"]
        table.add_row(
            row["target"],
            Text(row["verdict"], style=_STYLES[row["verdict"]]),
            _seconds(row["update_seconds"]),
            _seconds(row["hours"] and row["hours"] * 3600),
            bar(amount / longest / 2) if amount and longest else "",
            _count(row["sessions"]),
            _count(row["weeks"]),
            _cost(row),
        )
    notes = [f"{plan.target.name}: {settings_text(plan.settings.json())}" for plan in found.plans]
    notes += [f"{plan.target.name}: {change}" for plan in found.plans for change in plan.changes]
    dated = sorted(
        {plan.price.date for plan in found.plans if plan.price and plan.price.usd_per_hour and plan.price.date}
    )
    if dated:
        notes.append(f"list prices as read on {', '.join(dated)}; --price counts instead")
    return Group(table, Text("\n".join(notes)))


def _effective_batch(found: Plan) -> str:
    size = found.options["effective_batch"]
    pieces = -(-size // (found.settings.micro_batch or size))
    return f"{pieces} {'microbatch makes' if pieces == 1 else 'microbatches make'} the effective batch of {size}"


def _time_text(found: Plan) -> str:
    predicted, low, high = found.time.predicted, found.time.low, found.time.high
    if predicted.update_seconds is None:
        return "unknown"
    text = f"{seconds_text(predicted.update_seconds)} an update"
    if predicted.epoch_seconds is None or predicted.total_seconds is None:
        assert low.update_seconds is not None and high.update_seconds is not None
        return f"{text} (between {seconds_text(low.update_seconds)} and {seconds_text(high.update_seconds)})"
    assert low.total_seconds is not None and high.total_seconds is not None
    return (
        f"{text} · {seconds_text(predicted.epoch_seconds)} an epoch · {seconds_text(predicted.total_seconds)} in all "
        f"(between {seconds_text(low.total_seconds)} and {seconds_text(high.total_seconds)})"
    )


def _sessions_text(found: Plan) -> str:
    if not found.sessions or found.hours is None:
        return "–"
    platform = found.target.platform
    limit = f" of at most {platform.session_hours:g} h" if platform and platform.session_hours else ""
    weeks = ""
    if len(found.weeks) > 1 and platform:
        weeks = f", over {len(found.weeks)} weeks of {platform.weekly_gpu_hours:g} h"
    with_ = "starting, evaluating and stopping" if found.time.evaluation_seconds else "starting and stopping"
    return f"{len(found.sessions)}{limit}{weeks}, {seconds_text(found.hours * 3600)} with {with_}"


def _disk_text(found: Plan) -> str:
    limit = f" of {bytes_text(found.disk.limit_bytes)}" if found.disk.limit_bytes else ""
    return (
        f"{bytes_text(found.disk.peak_bytes)}{limit} at its fullest; "
        f"{bytes_text(found.disk.full_checkpoint_bytes)} a full checkpoint"
    )


def _price_text(found: Plan) -> str:
    assert found.price
    date = f" (read {found.price.date})" if found.price.date else ""
    return f"{found.price.usd_per_hour:g} an hour for a GPU, {found.price.source}{date}"


def _limits(found: Plan) -> RenderableType:
    table = grid()
    for limit in found.limits:
        share = Text(f"{limit.share:.0%}", justify="right", style="" if limit.holds else "bold red")
        amount = f"{limit.text(limit.needs)} of {limit.text(limit.has)}"
        table.add_row(limit.name, amount, share, bar(min(1.0, limit.share)))
    return table


def _alternative_text(other: Mapping[str, Any], chosen: Settings) -> str:
    plain = chosen.optimizer_kernel and not other["settings"]["optimizer_kernel"]
    without = f" · without optimizer_kernel {chosen.optimizer_kernel}" if plain else ""
    fits = "" if other["fits"] else ", does not fit"
    time = f", {seconds_text(other['update_seconds'])} an update" if other["update_seconds"] else ""
    return f"{settings_text(other['settings'])}{without}: {bytes_text(other['peak_bytes'])}{time}{fits}"


def _proposals(found: Plan) -> RenderableType:
    table = grid()
    for proposal in found.proposals:
        table.add_row(proposal.command or "–", Text(_proposal_text(proposal)))
    return table


def _proposal_text(proposal: Proposal) -> str:
    said = [proposal.name]
    if proposal.peak_bytes is not None:
        said.append(bytes_text(proposal.peak_bytes) + ("" if proposal.fits else ", does not fit"))
    if proposal.update_seconds is not None:
        said.append(f"{seconds_text(proposal.update_seconds)} an update")
    if proposal.changes_learning:
        said.append("changes what is learnt")
    return "; ".join([*said, *([proposal.note] if proposal.note else [])])


def _seconds(value: float | None) -> str:
    return "unknown" if value is None else seconds_text(value)


def _count(value: int | None) -> str:
    return "–" if value is None else str(value)


def _cost(row: Mapping[str, Any]) -> str:
    if row["usd_per_hour"] is None:
        return "unknown"
    return f"{row['usd_per_hour']:g} an hour" if row["usd"] is None else f"{row['usd']:.2f}"
