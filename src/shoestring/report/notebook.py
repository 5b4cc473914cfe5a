"""The notebook display of plans, estimates and comparisons: self-contained HTML without scripts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shoestring import display
from shoestring.estimate.memory import Breakdown
from shoestring.plan.comparison import Comparison
from shoestring.plan.costs import PlannedTime
from shoestring.plan.estimate import Estimate
from shoestring.plan.inference import InferencePlan
from shoestring.plan.limits import Limit
from shoestring.plan.plan import Plan
from shoestring.plan.proposals import Proposal
from shoestring.report.markup import Content, Markup, element, join
from shoestring.report.wording import limit_text, memory_text
from shoestring.settings import Settings
from shoestring.units import bytes_text, count_text, seconds_text

_BOX = "font-family:system-ui,sans-serif;line-height:1.45;max-width:60em"
_CELL = "text-align:left;padding:1px 12px 1px 0;vertical-align:top"
_BAR = "display:inline-block;height:0.7em;background:#2a7ab0;width:{width:.1f}em"
_GOOD, _BAD = "color:#1a7f37;font-weight:bold", "color:#b3261e;font-weight:bold"


@display.html.register
def render_plan(plan: Plan) -> Markup:
    """Render the verdict of a plan, followed by the facts that support it."""
    sessions, weeks = plan.sessions, plan.weeks
    return _box(
        f"{plan.recipe} on {plan.target.name}",
        plan.facts.parameters_total,
        plan.verdict,
        {
            "settings": _settings(plan.settings),
            "memory": _memory(plan.memory),
            "time": _time(plan.time),
            "sessions": f"{len(sessions)}, over {len(weeks) or '–'} weeks of the quota" if sessions else "–",
            "disk": f"{bytes_text(plan.disk.peak_bytes)} at its peak",
            "limits": _lines(map(_limit, plan.limits)),
            "reasons": _lines(plan.reasons),
            "notes": _lines(plan.facts.notes),
            "changes that would make it fit": _lines(plan.changes),
            "advice": _lines(plan.advice),
            "on out-of-memory": " → ".join(plan.fallbacks),
            "proposals": _lines(map(_proposal, plan.proposals)),
            "commands": _lines((f"{phase.name}: {phase.command}" for phase in plan.phases), tag="code"),
        },
    )


@display.html.register
def render_estimate(estimate: Estimate) -> Markup:
    """Render the parts of the memory estimated for specific settings."""
    return _box(
        f"{estimate.recipe} on {estimate.target.name}",
        estimate.facts.parameters_total,
        "fits" if estimate.memory.fits else "does not fit",
        {
            "settings": _settings(estimate.settings),
            "memory": _memory(estimate.memory),
            "notes": _lines(estimate.facts.notes),
        },
    )


@display.html.register
def render_inference(plan: InferencePlan) -> Markup:
    """Render the batch, the memory and the speed of predictions."""
    rate = plan.inputs_per_second
    return _box(
        f"{plan.recipe} on {plan.target.name}, predictions",
        plan.facts.parameters_total,
        plan.verdict,
        {
            "settings": _settings(plan.settings),
            "memory": _memory(plan.memory),
            "speed": "" if rate is None else f"{rate:,.3g} inputs a second",
        },
    )


@display.html.register
def render_comparison(comparison: Comparison) -> Markup:
    """Render a row for each target, followed by every plan in full."""
    columns = ("target", "verdict", "time per update", "total time", "sessions", "weeks", "US$")
    rows = [
        element("tr", [element("th", column, style=_CELL) for column in columns]),
        *(element("tr", [element("td", cell, style=_CELL) for cell in _cells(row)]) for row in comparison.rows()),
    ]
    return join([element("div", element("table", rows), style=_BOX), *map(render_plan, comparison.plans)])


def _cells(row: Mapping[str, Any]) -> Sequence[str]:
    durations = (row["update_seconds"], row["total_seconds"])
    return (
        row["target"],
        row["verdict"],
        *("unknown" if duration is None else seconds_text(duration) for duration in durations),
        *("–" if row[name] is None else str(row[name]) for name in ("sessions", "weeks")),
        "unknown" if row["usd"] is None else f"{row['usd']:.2f}",
    )


def _box(title: str, parameters: int, verdict: str, facts: Mapping[str, Content]) -> Markup:
    """Render a headline, and below it the facts that are not empty."""
    style = _GOOD if verdict == "fits" else _BAD
    headline = element(
        "div",
        element("b", title),
        f" · {count_text(parameters)} parameters · ",
        element("span", verdict, style=style),
    )
    rows = [
        element("tr", element("th", name, style=_CELL), element("td", content, style=_CELL))
        for name, content in facts.items()
        if content
    ]
    return element("div", headline, element("table", rows), style=_BOX)


def _settings(settings: Settings) -> str:
    values = settings.json()
    names = ("micro_batch", "precision", "checkpointing", "optimizer_kernel")
    return " · ".join(f"{name} {values[name]}" for name in names if values[name] is not None)


def _memory(memory: Breakdown) -> Markup:
    parts = sorted(memory.parts, key=lambda part: -part.bytes)
    largest = max((part.bytes for part in parts), default=1)
    bars = [
        element(
            "tr",
            element("td", part.name, style=_CELL),
            element("td", bytes_text(part.bytes), style=_CELL),
            element("td", element("span", style=_BAR.format(width=20 * part.bytes / largest))),
            title=part.source,
        )
        for part in parts
    ]
    return join([memory_text(memory), element("table", bars)])


def _time(time: PlannedTime) -> str:
    predicted, low, high = time.predicted, time.low, time.high
    if predicted.update_seconds is None:
        return "unknown"
    text = f"{seconds_text(predicted.update_seconds)} per update"
    if predicted.total_seconds is None:
        return text
    assert low.total_seconds is not None and high.total_seconds is not None
    total_range = f"between {seconds_text(low.total_seconds)} and {seconds_text(high.total_seconds)}"
    return f"{text} · {seconds_text(predicted.total_seconds)} total ({total_range})"


def _limit(limit: Limit) -> str:
    return f"{limit.name} {limit_text(limit)}{'' if limit.holds else ', exceeded'}"


def _proposal(proposal: Proposal) -> str:
    values = " ".join(f"{name}={value}" for name, value in proposal.values.items())
    return f"{proposal.name} {values}: {bytes_text(proposal.peak_bytes) if proposal.peak_bytes else proposal.note}"


def _lines(texts: Iterable[str], tag: str = "span") -> Markup:
    """Put each text on its own line."""
    return Markup("<br>".join(element(tag, text) for text in texts))
