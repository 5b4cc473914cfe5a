"""A plan: one sentence and a summary, or everything that is known."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shoestring.answers import wording
from shoestring.answers.document import (
    GAP,
    Bar,
    Column,
    Command,
    Document,
    Element,
    Fact,
    Inline,
    Items,
    KeyFigure,
    Paragraph,
    Section,
    Span,
    Table,
    Tone,
)
from shoestring.answers.wording import limit_text, model_text, settings_text
from shoestring.base.settings import Settings
from shoestring.base.units import bytes_text, plural, seconds_text
from shoestring.hardware.targets import PROBED
from shoestring.planning.commands import is_sent
from shoestring.planning.estimate.memory import MemoryPart
from shoestring.planning.estimate.span import total
from shoestring.planning.measured_plan import describe
from shoestring.planning.plan import Plan
from shoestring.planning.proposals.proposal import Proposal
from shoestring.planning.sessions import PlannedSession
from shoestring.planning.shares import samples_per_shard, shards_per_gpu
from shoestring.recipe.finding import HUGGING_FACE

_SUMMARY_PARTS = 5
"""Parts of the memory that the summary names; the smaller ones are added up."""
_LEAST_SHARE = 0.01
"""The share of the whole run from which on a part of it is shown."""
_SUMMARY_NOTES = 4
"""Notes that the summary shows, of each as much as fits on a line, and as many changes."""
_TONES: Mapping[str, Tone] = {"fits": "good", "fits with changes": "caution", "does not fit": "bad"}
_MOST_WEEKS, _MOST_SESSIONS = 6, 60
"""More of them are counted and not drawn."""


def printed(plan: Plan) -> Document:
    """Return the summary that `print` shows."""
    return summary(plan, full="shoestring plan --full")


def summary(plan: Plan, full: str = "--full") -> Document:
    """Return the sentence and at most 20 lines on settings, memory, time, sessions, disk and limits.

    `full` is the way to print everything, for the last line.
    """
    shares: list[Inline] = []
    for limit in plan.limits:
        text = f"{limit.name} {limit.share:.0%}"
        shares += [" · " if shares else "", text if limit.holds else Span(text, "bad")]
    content: list[Element] = [
        *_changes(plan, _SUMMARY_NOTES),
        *_facts(plan, _largest_parts(plan)),
        Fact("limits used", [Paragraph(shares)]),
    ]
    if len(plan.sessions) > 1:
        content += [Fact(answer.question, [Paragraph(answer.answer)]) for answer in plan.answers]
    if notes := wording.all_notes(plan.target, plan.facts):
        content.append(Fact("notes", [Items(notes[:_SUMMARY_NOTES], is_clipped=True)]))
    return _document(plan, full, [*content, GAP, Paragraph(_omitted(plan, full), "faint")])


def document(plan: Plan) -> Document:
    """Return the sentence and all of the plan: limits, reasons, alternatives, proposals and the phases of the run."""
    content: list[Element] = [*_changes(plan), *_facts(plan, wording.largest_first(plan.memory))]
    if plan.cost_usd is not None and plan.price and plan.price.usd_per_hour:
        cost = KeyFigure("cost", f"{plan.cost_usd:.2f} US$", f"{plan.price.usd_per_hour:g} US$ per GPU hour")
        content.append(Fact("cost", [Paragraph(f"{plan.cost_usd:.2f} US$ at {_price_text(plan)}", figure=cost)]))
    content.append(Fact("limits", [_limits(plan)]))
    for name, lines in (
        ("reasons", plan.reasons),
        ("not included", plan.unknown),
        ("notes", wording.all_notes(plan.target, plan.facts)),
        ("advice", plan.advice),
        ("alternatives", [alternative_text(other, plan.settings) for other in plan.alternatives]),
    ):
        if lines:
            content.append(Fact(name, [Items(lines)], is_folded=True))
    for answer in plan.answers:
        content.append(Fact(answer.question, [Paragraph(answer.answer), Command(answer.command)], is_folded=True))
    fallbacks = f"the engine's fallbacks, in order: {' → '.join(plan.fallbacks)}"
    content.append(Fact("out of memory", [Paragraph(fallbacks)], is_folded=True))
    if plan.proposals:
        rows = [(proposal.command or "–", "; ".join(_proposal_texts(proposal))) for proposal in plan.proposals]
        content.append(Fact("proposals", [Table([Column(), Column()], rows)], is_folded=True))
    for phase in plan.phases:
        time = f", about {seconds_text(phase.seconds)}" if phase.seconds is not None else ""
        content.append(Fact(phase.name, [Paragraph(f"{phase.tells}{time}"), Command(phase.command)], is_folded=True))
    return _document(plan, "", content)


def _document(plan: Plan, full: str, content: Sequence[Element]) -> Document:
    purpose = "To train it" if plan.fits else "To plan it with changes that are predicted to fit"
    command = [Command(plan.next_command, purpose)] if plan.next_command else []
    return Document(
        title=f"{plan.recipe} on {plan.target.name}",
        status=plan.verdict,
        subtitle=wording.device_text(plan.target, plan.facts),
        sentences=[_sentence(plan, full)],
        content=[*command, GAP, *content],
    )


def _sentence(plan: Plan, full: str) -> Inline:
    """Return whether the run fits, how long it takes, and an introduction to what to type next.

    `full` is the way to print everything; empty if this is everything.
    """
    device = plan.target.device
    place = f"{plan.target.name} ({device.title}, {bytes_text(device.memory_bytes)}; {model_text(plan.facts)})"
    beginning: list[Inline] = [
        Span(plan.recipe, "strong"),
        " ",
        Span("fits" if plan.fits else "does not fit", _TONES[plan.verdict]),
        f" on {place}",
    ]
    if plan.fits:
        reason = _duration(plan)
        is_here = plan.target.name in PROBED or is_sent(plan.target)  # `kaggle start` is typed here
        following = "To train it, type" if is_here else "To train it there, type"
    else:
        needs = "; ".join(
            f"{limit.text(limit.needs)} of {limit.name}, but {limit.text(limit.has)} is available"
            for limit in plan.limits
            if not limit.holds
        )
        reason = f": it needs {needs}."
        following = "To plan it with changes that are predicted to fit, type"
    if not plan.next_command:
        following = _without_command(plan, full)
    return [*beginning, reason, f" {following}" if following else ""]


def _without_command(plan: Plan, full: str) -> str:
    """Say why there is nothing to type next."""
    if plan.fits:
        source = "A configuration has no data" if plan.recipe.startswith(HUGGING_FACE) else "The recipe has no data()"
        return "" if plan.facts.samples else f"{source}, so it can be planned but not trained."
    if plan.changes:
        return "What would be enough is listed below."
    see = f" (see {full})" if full else ""
    return f"No single change that the plan tried makes it fit; several together may{see}."


def _duration(plan: Plan) -> str:
    if plan.hours is None:
        return ". The time is unknown." if plan.time.predicted.update_seconds is None else "."
    return f" and takes about {seconds_text(plan.hours * 3600)} in {plural(len(plan.sessions), 'session')}."


def _changes(plan: Plan, limit: int | None = None) -> Iterator[Section]:
    """Yield what would make the run fit."""
    if plan.changes:
        yield Fact("to make it fit", [Items(plan.changes[:limit])])
    elif not plan.fits:
        text = "No single change that the plan tried makes it fit; several together may."
        yield Section("to make it fit", [Paragraph(text)], is_extra=True)


def _facts(plan: Plan, parts: Sequence[MemoryPart]) -> Iterator[Section]:
    """Yield what the summary and the whole plan have in common, with `parts` of the memory."""
    yield Fact("settings", [wording.settings(plan.settings.json(), accumulation(plan))])
    yield wording.memory(plan.memory, parts, figure=_memory_figure(plan))
    yield Fact("time", list(_time(plan)))
    if plan.measured:
        yield Fact("measured", [Paragraph(describe(plan.measured))])
    if plan.job:
        yield Fact("whole run", [Paragraph(_job_text(plan))])
    yield _sessions(plan)
    if plan.sessions and plan.hours is not None:
        yield Section("sessions", list(_weeks(plan)), is_extra=True)
    yield Fact("disk", [Paragraph(_disk_text(plan), figure=_disk_figure(plan))])
    if plan.image and plan.image.lacks:
        yield Fact("image", [Paragraph(plan.image.text)])


def _memory_figure(plan: Plan) -> KeyFigure:
    memory = plan.memory
    details = (
        f"{bytes_text(memory.low_bytes)} to {bytes_text(memory.high_bytes)}, of {bytes_text(memory.capacity_bytes)}"
    )
    if memory.loading_bytes > memory.capacity_bytes:
        details += f"; loading the model alone takes {bytes_text(memory.loading_bytes)}"
    return KeyFigure("peak memory", bytes_text(memory.peak_bytes), details)


def _largest_parts(plan: Plan) -> list[MemoryPart]:
    parts = wording.largest_first(plan.memory)
    largest, smaller = parts[:_SUMMARY_PARTS], parts[_SUMMARY_PARTS:]
    if len(smaller) < 2:
        return parts
    return [*largest, MemoryPart(name=f"{len(smaller)} others", bytes=sum(part.bytes for part in smaller), source="")]


def accumulation(plan: Plan) -> str:
    """Return how many microbatches make an update."""
    size, gpus = plan.options["effective_batch"], plan.settings.processes
    if plan.settings.packing == "yes":
        rows = plural(plan.settings.micro_batch or 1, "packed row")
        return f"microbatches of at most {rows}, updates of {plural(size, 'sample')}"
    share = samples_per_shard(size, plan.settings)
    count = shards_per_gpu(plan.settings) * -(-share // (plan.settings.micro_batch or share))
    place = f" on each of {gpus} {'GPUs' if plan.target.gpus else 'processes'}" if gpus > 1 else ""
    place = " through both GPUs" if plan.settings.is_pipeline else place
    unused = plan.target.gpus - (plan.settings.gpus or 1)
    idle = f"; {unused} of the {plan.target.gpus} GPUs is not used" if unused == 1 else ""
    idle = f"; {unused} of the {plan.target.gpus} GPUs are not used" if unused > 1 else idle
    return f"{plural(count, 'microbatch', 'microbatches')}{place} per update of {plural(size, 'sample')}{idle}"


def _time(plan: Plan) -> Iterator[Paragraph]:
    predicted, low, high = plan.time.predicted, plan.time.low, plan.time.high
    if predicted.update_seconds is None:
        yield Paragraph("unknown", figure=KeyFigure("training", "time unknown", plan.time.source))
    elif predicted.epoch_seconds is None or predicted.total_seconds is None:
        assert low.update_seconds is not None and high.update_seconds is not None
        update = seconds_text(predicted.update_seconds)
        text = (
            f"{update} per update (between {seconds_text(low.update_seconds)} and {seconds_text(high.update_seconds)})"
        )
        yield Paragraph(text, figure=KeyFigure("one update", update, "without data there is no number of updates"))
    else:
        assert low.total_seconds is not None and high.total_seconds is not None
        update, total_text = seconds_text(predicted.update_seconds), seconds_text(predicted.total_seconds)
        fastest, slowest = seconds_text(low.total_seconds), seconds_text(high.total_seconds)
        yield Paragraph(
            f"{update} per update · {seconds_text(predicted.epoch_seconds)} per epoch · {total_text} for all updates "
            f"(between {fastest} and {slowest})",
            figure=KeyFigure("training", total_text, f"{fastest} to {slowest}; {update} per update"),
        )
    if plan.time.source.startswith("kernels measured"):
        rates = plan.time.source.partition("; range:")[0]
        yield Paragraph(f"from {rates}; no update was compared with them")


def _sessions(plan: Plan) -> Fact:
    if not plan.sessions or plan.hours is None:
        return Fact("sessions", [Paragraph("unknown")])
    platform = plan.target.platform
    limit = f" of at most {seconds_text(platform.session_hours * 3600)}" if platform and platform.session_hours else ""
    weeks, weeks_text = "", ""
    if len(plan.weeks) > 1 and platform:
        weeks = f", over {len(plan.weeks)} weeks with a quota of {platform.weekly_gpu_hours:g} h each"
        weeks_text = f" over {plural(len(plan.weeks), 'week')}"
    job = total(plan.job.values())
    figure = KeyFigure(
        f"in {plural(len(plan.sessions), 'session')}{weeks_text}",
        seconds_text(plan.hours * 3600),
        f"{seconds_text(job.low)} to {seconds_text(job.high)}, with starting, evaluating and saving",
    )
    return Fact("sessions", [Paragraph(f"{len(plan.sessions)}{limit}{weeks}", figure=figure)])


def _weeks(plan: Plan) -> Iterator[Element]:
    """Yield a bar for each week, as wide as its quota, or for the run."""
    assert plan.hours is not None
    platform = plan.target.platform
    quota = platform.weekly_gpu_hours if platform else None
    limit = platform.session_hours if platform else None
    bound = f" of at most {seconds_text(limit * 3600)}" if limit else ""
    yield Paragraph(f"{plural(len(plan.sessions), 'session')}{bound}; {seconds_text(plan.hours * 3600)} in all")
    weeks: list[tuple[str, list[float], float]] = []
    if plan.weeks and quota:
        first = 0
        for week in plan.weeks:
            weeks.append((f"week {week.week}", _hours(plan.sessions[first : first + week.sessions]), quota))
            first += week.sessions
    else:
        hours = _hours(plan.sessions)
        weeks.append(("run", hours, max(sum(hours), 1e-9)))
    rows = [_week(*week) for week in weeks[:_MOST_WEEKS]]
    yield Table([Column(), Column(), Column(is_numeric=True)], rows)
    if len(weeks) > _MOST_WEEKS:
        yield Paragraph(f"and {plural(len(weeks) - _MOST_WEEKS, 'more week')}", "faint")


def _hours(sessions: Sequence[PlannedSession]) -> list[float]:
    hours = [session.hours for session in sessions]
    return [sum(hours)] if len(hours) > _MOST_SESSIONS else hours


def _week(name: str, hours: Sequence[float], whole: float) -> tuple[str, Bar, str]:
    used = seconds_text(sum(hours) * 3600)
    text = used if sum(hours) >= whole else f"{used} of {whole:g} h"
    return name, Bar([session_hours / whole for session_hours in hours]), text


def _job_text(plan: Plan) -> str:
    """Return the duration of the whole run with its range, and what takes it, the longest first."""
    job = total(plan.job.values())
    parts = sorted(plan.job.items(), key=lambda part: -part[1].seconds)
    largest = [
        f"{name} {seconds_text(span.seconds)}" for name, span in parts if span.seconds >= _LEAST_SHARE * job.seconds
    ]
    text = f"{seconds_text(job.seconds)} (between {seconds_text(job.low)} and {seconds_text(job.high)})"
    return f"{text}: {' · '.join(largest)}"


def _disk_text(plan: Plan) -> str:
    limit = f" of {bytes_text(plan.disk.limit_bytes)}" if plan.disk.limit_bytes else ""
    light_weights = plan.settings.light_weights
    rounded = "" if light_weights in (None, "own") else f"; best and last weights in {light_weights}"
    count = ", of which 1 is kept" if plan.settings.keep_checkpoints == 1 else ""
    return (
        f"{bytes_text(plan.disk.peak_bytes)}{limit} at the peak; "
        f"{bytes_text(plan.disk.full_checkpoint_bytes)} per full checkpoint{count}{rounded}"
        + "".join(f"; {bytes_text(size)} exported as {name}" for name, size in plan.disk.export_bytes.items())
    )


def _disk_figure(plan: Plan) -> KeyFigure:
    limit = f"of {bytes_text(plan.disk.limit_bytes)}; " if plan.disk.limit_bytes else ""
    details = f"{limit}{bytes_text(plan.disk.full_checkpoint_bytes)} per checkpoint"
    return KeyFigure("disk", bytes_text(plan.disk.peak_bytes), details)


def _price_text(plan: Plan) -> str:
    assert plan.price
    date = f" (as of {plan.price.date})" if plan.price.date else ""
    return f"{plan.price.usd_per_hour:g} per GPU hour, {plan.price.source}{date}"


def _limits(plan: Plan) -> Table:
    rows = []
    for limit in plan.limits:
        share = f"{limit.share:.0%}"
        rows.append(
            (
                limit.name,
                limit_text(limit),
                share if limit.holds else Span(share, "bad"),
                Bar([min(1.0, limit.share)], "" if limit.holds else "does not fit"),
            )
        )
    return Table([Column(), Column(), Column(is_numeric=True), Column()], rows)


def _omitted(plan: Plan, full: str) -> str:
    """Return the line that says what `full` adds."""
    counts = [
        "all parts of the memory",
        plural(len(plan.reasons), "reason"),
        *([plural(len(plan.alternatives), "alternative")] if plan.alternatives else []),
        *([plural(len(plan.proposals), "proposal")] if plan.proposals else []),
        "and what the engine does on out-of-memory",
    ]
    return f"{full} adds {', '.join(counts)}."


def alternative_text(alternative: Mapping[str, Any], chosen: Settings) -> str:
    """Return other settings with their memory and their time."""
    plain = chosen.optimizer_kernel and not alternative["settings"]["optimizer_kernel"]
    without = f" · without optimizer_kernel {chosen.optimizer_kernel}" if plain else ""
    fits = "" if alternative["fits"] else ", does not fit"
    seconds = alternative["update_seconds"]
    time = f", {seconds_text(seconds)} per update" if seconds else ""
    return f"{settings_text(alternative['settings'])}{without}: {bytes_text(alternative['peak_bytes'])}{time}{fits}"


def _proposal_texts(proposal: Proposal) -> Iterator[str]:
    """Yield what a proposal changes, its memory, its time, and what it means for the training result."""
    yield proposal.name
    if proposal.peak_bytes is not None:
        yield bytes_text(proposal.peak_bytes) + ("" if proposal.fits else ", does not fit")
    if proposal.update_seconds is not None:
        yield f"{seconds_text(proposal.update_seconds)} per update"
    if proposal.changes_learning:
        yield "changes the training result"
    if proposal.note:
        yield proposal.note
