"""A plan on one screen: the verdict first, then what it rests on."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from shoestring.plan.plan import Plan
from shoestring.plan.proposals import Proposal
from shoestring.report.terminal.elements import bar, grid, headline, memory_bars, settings_text, verdict
from shoestring.report.wording import limit_text, memory_text
from shoestring.settings import Settings
from shoestring.units import bytes_text, seconds_text


def screen(plan: Plan) -> RenderableType:
    """What a plan looks like in a terminal."""
    facts = grid()
    facts.add_row("settings", settings_text(plan.settings.json()))
    facts.add_row("", _effective_batch(plan))
    facts.add_row("memory", memory_text(plan.memory))
    facts.add_row("", memory_bars(plan.memory))
    facts.add_row("time", _time_text(plan))
    facts.add_row("sessions", _sessions_text(plan))
    facts.add_row("disk", _disk_text(plan))
    if plan.cost_usd is not None and plan.price and plan.price.usd_per_hour:
        facts.add_row("cost", f"{plan.cost_usd:.2f} US$ at {_price_text(plan)}")
    facts.add_row("limits", _limits(plan))
    for name, lines in (
        ("because", plan.reasons),
        ("notes", plan.facts.notes),
        ("would do", plan.changes),
        ("advice", plan.advice),
        ("or", tuple(_alternative_text(other, plan.settings) for other in plan.alternatives)),
    ):
        if lines:
            facts.add_row(name, Text("\n".join(lines)))
    facts.add_row("if memory ends", Text(" → ".join(plan.fallbacks)))
    if plan.proposals:
        facts.add_row("proposals", _proposals(plan))
    for phase in plan.phases:
        time = f", about {seconds_text(phase.seconds)}" if phase.seconds is not None else ""
        # One line that can be pasted, however narrow the terminal.
        facts.add_row(phase.name, Text(f"{phase.tells}{time}\n{phase.command}", overflow="fold"))
    return Group(
        headline(plan.recipe, plan.target, plan.facts),
        verdict(plan.verdict),
        facts,
    )


def _effective_batch(plan: Plan) -> str:
    size = plan.options["effective_batch"]
    pieces = -(-size // (plan.settings.micro_batch or size))
    return f"{pieces} {'microbatch makes' if pieces == 1 else 'microbatches make'} the effective batch of {size}"


def _time_text(plan: Plan) -> str:
    predicted, low, high = plan.time.predicted, plan.time.low, plan.time.high
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


def _sessions_text(plan: Plan) -> str:
    if not plan.sessions or plan.hours is None:
        return "–"
    platform = plan.target.platform
    limit = f" of at most {platform.session_hours:g} h" if platform and platform.session_hours else ""
    weeks = ""
    if len(plan.weeks) > 1 and platform:
        weeks = f", over {len(plan.weeks)} weeks of {platform.weekly_gpu_hours:g} h"
    with_ = "starting, evaluating and stopping" if plan.time.evaluation_seconds else "starting and stopping"
    return f"{len(plan.sessions)}{limit}{weeks}, {seconds_text(plan.hours * 3600)} with {with_}"


def _disk_text(plan: Plan) -> str:
    limit = f" of {bytes_text(plan.disk.limit_bytes)}" if plan.disk.limit_bytes else ""
    return (
        f"{bytes_text(plan.disk.peak_bytes)}{limit} at its fullest; "
        f"{bytes_text(plan.disk.full_checkpoint_bytes)} a full checkpoint"
    )


def _price_text(plan: Plan) -> str:
    assert plan.price
    date = f" (read {plan.price.date})" if plan.price.date else ""
    return f"{plan.price.usd_per_hour:g} an hour for a GPU, {plan.price.source}{date}"


def _limits(plan: Plan) -> RenderableType:
    table = grid()
    for limit in plan.limits:
        share = Text(f"{limit.share:.0%}", justify="right", style="" if limit.holds else "bold red")
        table.add_row(limit.name, limit_text(limit), share, bar(min(1.0, limit.share)))
    return table


def _alternative_text(other: Mapping[str, Any], chosen: Settings) -> str:
    plain = chosen.optimizer_kernel and not other["settings"]["optimizer_kernel"]
    without = f" · without optimizer_kernel {chosen.optimizer_kernel}" if plain else ""
    fits = "" if other["fits"] else ", does not fit"
    time = f", {seconds_text(other['update_seconds'])} an update" if other["update_seconds"] else ""
    return f"{settings_text(other['settings'])}{without}: {bytes_text(other['peak_bytes'])}{time}{fits}"


def _proposals(plan: Plan) -> RenderableType:
    table = grid()
    for proposal in plan.proposals:
        table.add_row(proposal.command or "–", Text(_proposal_text(proposal)))
    return table


def _proposal_text(proposal: Proposal) -> str:
    texts = [proposal.name]
    if proposal.peak_bytes is not None:
        texts.append(bytes_text(proposal.peak_bytes) + ("" if proposal.fits else ", does not fit"))
    if proposal.update_seconds is not None:
        texts.append(f"{seconds_text(proposal.update_seconds)} an update")
    if proposal.changes_learning:
        texts.append("changes what is learnt")
    return "; ".join([*texts, *([proposal.note] if proposal.note else [])])
