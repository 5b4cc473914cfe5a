"""The display of a plan: the verdict, memory, sessions and settings; reasons and notes are folded."""

from collections.abc import Iterator

from shoestring.answers.markup import EMPTY, Content, Markup, element
from shoestring.answers.notebook.layout import (
    box,
    code,
    dotted,
    fold,
    folded,
    labels,
    lines,
    pill,
    section,
    table,
    tiles,
)
from shoestring.answers.notebook.memory import memory
from shoestring.answers.notebook.sessions import sessions
from shoestring.answers.terminal.plan import accumulation, alternative_text, proposal_texts
from shoestring.answers.values import words
from shoestring.answers.wording import device_text, limit_text, notable_settings
from shoestring.base import display
from shoestring.base.units import bytes_text, plural, seconds_text
from shoestring.planning.estimate.span import total
from shoestring.planning.limits import Limit
from shoestring.planning.plan import Plan
from shoestring.planning.proposals import Proposal


@display.html.register
def render(plan: Plan) -> Markup:
    """Render the verdict of a plan, followed by the facts that support it."""
    return box(
        f"{plan.recipe} on {plan.target.name}",
        plan.verdict,
        device_text(plan.target, plan.facts),
        _changes(plan),
        tiles(_tiles(plan)),
        memory(plan.memory, has_tile=True),
        sessions(plan),
        section(
            "Settings", labels((words(name), str(value)) for name, value in notable_settings(plan.settings.json()))
        ),
        lines([accumulation(plan)]),
        lines([plan.image.text] if plan.image and plan.image.lacks else []),
        section("Limits", element("div", dotted(map(_limit, plan.limits)), style="font-size:13px")),
        element("div", _folded(plan), style="margin-top:10px"),
        _next(plan),
    )


def _tiles(plan: Plan) -> Iterator[tuple[str, str, str]]:
    breakdown, time = plan.memory, plan.time
    bounds = f"{bytes_text(breakdown.low_bytes)} to {bytes_text(breakdown.high_bytes)}"
    yield "peak memory", bytes_text(breakdown.peak_bytes), f"{bounds}, of {bytes_text(breakdown.capacity_bytes)}"
    update, updates_total = time.predicted.update_seconds, time.predicted.total_seconds
    if update is None:
        yield "training", "time unknown", time.source
    elif updates_total is None or time.low.total_seconds is None or time.high.total_seconds is None:
        yield "one update", seconds_text(update), "without data there is no number of updates"
    else:
        span = f"{seconds_text(time.low.total_seconds)} to {seconds_text(time.high.total_seconds)}"
        yield "training", seconds_text(updates_total), f"{span}; {seconds_text(update)} per update"
    if plan.hours is not None:
        weeks = f" over {plural(len(plan.weeks), 'week')}" if len(plan.weeks) > 1 else ""
        job = total(plan.job.values())
        details = f"{seconds_text(job.low)} to {seconds_text(job.high)}, with starting, evaluating and saving"
        yield f"in {plural(len(plan.sessions), 'session')}{weeks}", seconds_text(plan.hours * 3600), details
    limit = plan.disk.limit_bytes
    full = f"{bytes_text(plan.disk.full_checkpoint_bytes)} per checkpoint"
    yield "disk", bytes_text(plan.disk.peak_bytes), f"of {bytes_text(limit)}; {full}" if limit else full
    if plan.cost_usd:
        assert plan.price
        yield "cost", f"{plan.cost_usd:.2f} US$", f"{plan.price.usd_per_hour:g} US$ per GPU hour"


def _changes(plan: Plan) -> Markup:
    """Return what is exceeded, and what would make the run fit."""
    if plan.fits:
        return EMPTY
    changes = [element("li", change) for change in plan.changes] or [
        element("li", "No single change that the plan tried makes it fit; several together may.")
    ]
    return section("To make it fit", element("ul", changes, style="margin:2px 0;padding-left:20px"))


def _limit(limit: Limit) -> Content:
    name = element("span", limit.name, " ", element("b", f"{limit.share:.0%}"), title=limit_text(limit))
    return name if limit.holds else [name, f" ({limit_text(limit)}) ", pill("exceeded")]


def _folded(plan: Plan) -> Iterator[Markup]:
    yield folded("Reasons", plan.reasons)
    yield folded("Notes", plan.facts.notes)
    yield folded("Advice", plan.advice)
    yield folded("Alternatives", [alternative_text(other, plan.settings) for other in plan.alternatives])
    yield folded("Proposals", [_proposal(proposal) for proposal in plan.proposals])
    yield folded("On out of memory, in this order", plan.fallbacks)
    if plan.phases:
        rows = [
            (phase.name, seconds_text(phase.seconds) if phase.seconds is not None else "", code(phase.command))
            for phase in plan.phases
        ]
        yield fold(f"Commands ({len(rows)})", table(rows))


def _proposal(proposal: Proposal) -> str:
    values = " ".join(f"{name}={value}" for name, value in proposal.values.items())
    return f"{values}: {'; '.join(proposal_texts(proposal))}"


def _next(plan: Plan) -> Markup:
    if not plan.next_command:
        return EMPTY
    title = "To train it" if plan.fits else "To plan it with changes that are predicted to fit"
    return section(title, code(plan.next_command))
