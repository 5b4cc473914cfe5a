"""A plan in a terminal: one sentence and a summary, or everything that is known."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shoestring.answers.terminal.elements import VERDICTS, bar, grid, memory_bars, settings_text
from shoestring.answers.wording import limit_text, memory_text, model_text
from shoestring.base.settings import Settings
from shoestring.base.streams import message_text, one_line
from shoestring.base.units import bytes_text, plural, seconds_text
from shoestring.hardware.targets import PROBED
from shoestring.planning.commands import is_sent
from shoestring.planning.estimate.memory import MemoryPart
from shoestring.planning.estimate.span import total
from shoestring.planning.measured_plan import describe
from shoestring.planning.plan import Plan
from shoestring.planning.proposals import Proposal
from shoestring.planning.shares import gpus_of, samples_per_shard, shards_per_gpu

_SUMMARY_PARTS = 5
"""Parts of the memory that the summary names; the smaller ones are added up."""
_LEAST_SHARE = 0.01
"""The share of the whole run from which on a part of it is shown."""
_SUMMARY_NOTES = 4
"""Notes that the summary shows, of each as much as fits on a line, and as many changes."""


def summary(plan: Plan, full: str = "--full") -> RenderableType:
    """Return the sentence and at most 20 lines on settings, memory, time, sessions, disk and limits.

    `full` is the way to print everything, for the last line.
    """
    rows = _rows(plan, _largest_parts(plan))
    shares = [Text(f"{limit.name} {limit.share:.0%}", style="" if limit.holds else "bold red") for limit in plan.limits]
    rows.add_row("limits used", Text(" · ").join(shares))
    if len(plan.sessions) > 1:
        for answer in plan.answers:
            rows.add_row(answer.question, answer.answer)
    if plan.changes:
        rows.add_row("to make it fit", Text(_lines(plan.changes[:_SUMMARY_NOTES])))
    if plan.facts.notes:
        rows.add_row("notes", Text(_lines(plan.facts.notes[:_SUMMARY_NOTES]), no_wrap=True, overflow="ellipsis"))
    return Group(_answer(plan, full), Text(), rows, Text(), Text(_omitted(plan, full), style="dim"))


def screen(plan: Plan) -> RenderableType:
    """Return the sentence and all of the plan: limits, reasons, alternatives, proposals and the phases of the run."""
    rows = _rows(plan, sorted(plan.memory.parts, key=lambda part: -part.bytes))
    if plan.cost_usd is not None and plan.price and plan.price.usd_per_hour:
        rows.add_row("cost", f"{plan.cost_usd:.2f} US$ at {_price_text(plan)}")
    rows.add_row("limits", _limits(plan))
    for name, lines in (
        ("to make it fit", plan.changes),
        ("reasons", plan.reasons),
        ("not included", plan.unknown),
        ("notes", plan.facts.notes),
        ("advice", plan.advice),
        ("alternatives", tuple(alternative_text(other, plan.settings) for other in plan.alternatives)),
    ):
        if lines:
            rows.add_row(name, Text(_lines(lines)))
    for answer in plan.answers:
        rows.add_row(answer.question, Text(f"{answer.answer}\n{one_line(answer.command)}", overflow="fold"))
    rows.add_row("out of memory", Text(f"the engine's fallbacks, in order: {' → '.join(plan.fallbacks)}"))
    if plan.proposals:
        rows.add_row("proposals", _proposals(plan))
    for phase in plan.phases:
        time = f", about {seconds_text(phase.seconds)}" if phase.seconds is not None else ""
        # The command is one line that can be pasted, even if the terminal wraps it.
        rows.add_row(phase.name, Text(f"{phase.tells}{time}\n{one_line(phase.command)}", overflow="fold"))
    return Group(_answer(plan, full=""), Text(), rows)


def _rows(plan: Plan, parts: Sequence[MemoryPart]) -> Table:
    """Return the rows that the summary and the whole plan have in common, with bars for `parts` of the memory."""
    rows = grid()
    rows.add_row("settings", f"{settings_text(plan.settings.json())}; {accumulation(plan)}")
    rows.add_row("memory", memory_text(plan.memory))
    rows.add_row("", memory_bars(parts))
    rows.add_row("time", _time_text(plan))
    if plan.time.source.startswith("kernels measured"):
        rates = plan.time.source.partition("; range:")[0]
        rows.add_row("", Text(f"from {message_text(rates)}; no update was compared with them"))
    if plan.measured:
        rows.add_row("measured", message_text(describe(plan.measured)))
    if plan.job:
        rows.add_row("whole run", _job_text(plan))
    rows.add_row("sessions", _sessions_text(plan))
    rows.add_row("disk", _disk_text(plan))
    if plan.image and plan.image.lacks:
        rows.add_row("image", message_text(plan.image.text))
    return rows


def _answer(plan: Plan, full: str) -> RenderableType:
    """Return whether the run fits, how long it takes, and what to type next, on one line that can be pasted.

    `full` is the way to print everything; empty if this is everything.
    """
    device = plan.target.device
    place = f"{plan.target.name} ({device.title}, {bytes_text(device.memory_bytes)}; {model_text(plan.facts)})"
    fits, style = ("fits", VERDICTS["fits"]) if plan.fits else ("does not fit", VERDICTS[plan.verdict])
    text = Text.assemble((one_line(plan.recipe), "bold"), " ", (fits, style), f" on {place}")
    if plan.fits:
        text.append(_duration(plan))
        is_here = plan.target.name in PROBED or is_sent(plan.target)  # `kaggle start` is typed here
        following = "To train it, type" if is_here else "To train it there, type"
    else:
        broken = [limit for limit in plan.limits if not limit.holds]
        needs = "; ".join(
            f"{limit.text(limit.needs)} of {limit.name}, but {limit.text(limit.has)} is available" for limit in broken
        )
        text.append(f": it needs {needs}.")
        following = "To plan it with changes that are predicted to fit, type"
    if plan.next_command:
        text.append(f" {following}")
        return Group(text, Text(f"  {one_line(plan.next_command)}", style="bold", no_wrap=True, overflow="ignore"))
    if plan.changes and not plan.fits:
        text.append(" What would be enough is listed below.")
    elif not plan.fits:
        see = f" (see {full})" if full else ""
        text.append(f" No single change that the plan tried makes it fit; several together may{see}.")
    elif not plan.facts.samples:
        text.append(" The recipe has no data(), so it can be planned but not trained.")
    return text


def _duration(plan: Plan) -> str:
    if plan.hours is None:
        return ". The time is unknown." if plan.time.predicted.update_seconds is None else "."
    return f" and takes about {seconds_text(plan.hours * 3600)} in {plural(len(plan.sessions), 'session')}."


def _lines(messages: Sequence[str]) -> str:
    return "\n".join(map(message_text, messages))


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


def _largest_parts(plan: Plan) -> list[MemoryPart]:
    parts = sorted(plan.memory.parts, key=lambda part: -part.bytes)
    largest, smaller = parts[:_SUMMARY_PARTS], parts[_SUMMARY_PARTS:]
    if len(smaller) < 2:
        return parts
    return [*largest, MemoryPart(name=f"{len(smaller)} others", bytes=sum(part.bytes for part in smaller), source="")]


def accumulation(plan: Plan) -> str:
    """Return how many microbatches make an update."""
    size, gpus = plan.options["effective_batch"], gpus_of(plan.settings)
    if plan.settings.packing == "yes":
        rows = plural(plan.settings.micro_batch or 1, "packed row")
        return f"microbatches of at most {rows}, updates of {plural(size, 'sample')}"
    share = samples_per_shard(size, plan.settings)
    count = shards_per_gpu(plan.settings) * -(-share // (plan.settings.micro_batch or share))
    place = f" on each of {gpus} {'GPUs' if plan.target.gpus else 'processes'}" if gpus > 1 else ""
    unused = plan.target.gpus - gpus
    idle = f"; {unused} of the {plan.target.gpus} GPUs is not used" if unused == 1 else ""
    idle = f"; {unused} of the {plan.target.gpus} GPUs are not used" if unused > 1 else idle
    return f"{plural(count, 'microbatch', 'microbatches')}{place} per update of {plural(size, 'sample')}{idle}"


def _time_text(plan: Plan) -> str:
    predicted, low, high = plan.time.predicted, plan.time.low, plan.time.high
    if predicted.update_seconds is None:
        return "unknown"
    text = f"{seconds_text(predicted.update_seconds)} per update"
    if predicted.epoch_seconds is None or predicted.total_seconds is None:
        assert low.update_seconds is not None and high.update_seconds is not None
        return f"{text} (between {seconds_text(low.update_seconds)} and {seconds_text(high.update_seconds)})"
    assert low.total_seconds is not None and high.total_seconds is not None
    return (
        f"{text} · {seconds_text(predicted.epoch_seconds)} per epoch · {seconds_text(predicted.total_seconds)} for all "
        f"updates (between {seconds_text(low.total_seconds)} and {seconds_text(high.total_seconds)})"
    )


def _sessions_text(plan: Plan) -> str:
    if not plan.sessions or plan.hours is None:
        return "unknown"
    platform = plan.target.platform
    limit = f" of at most {seconds_text(platform.session_hours * 3600)}" if platform and platform.session_hours else ""
    weeks = ""
    if len(plan.weeks) > 1 and platform:
        weeks = f", over {len(plan.weeks)} weeks with a quota of {platform.weekly_gpu_hours:g} h each"
    return f"{len(plan.sessions)}{limit}{weeks}"


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
    return (
        f"{bytes_text(plan.disk.peak_bytes)}{limit} at the peak; "
        f"{bytes_text(plan.disk.full_checkpoint_bytes)} per full checkpoint{rounded}"
        + "".join(f"; {bytes_text(size)} exported as {name}" for name, size in plan.disk.export_bytes.items())
    )


def _price_text(plan: Plan) -> str:
    assert plan.price
    date = f" (as of {plan.price.date})" if plan.price.date else ""
    return f"{plan.price.usd_per_hour:g} per GPU hour, {plan.price.source}{date}"


def _limits(plan: Plan) -> RenderableType:
    table = grid()
    for limit in plan.limits:
        share = Text(f"{limit.share:.0%}", justify="right", style="" if limit.holds else "bold red")
        table.add_row(limit.name, limit_text(limit), share, bar(min(1.0, limit.share)))
    return table


def alternative_text(alternative: Mapping[str, Any], chosen: Settings) -> str:
    """Return other settings with their memory and their time."""
    plain = chosen.optimizer_kernel and not alternative["settings"]["optimizer_kernel"]
    without = f" · without optimizer_kernel {chosen.optimizer_kernel}" if plain else ""
    fits = "" if alternative["fits"] else ", does not fit"
    seconds = alternative["update_seconds"]
    time = f", {seconds_text(seconds)} per update" if seconds else ""
    return f"{settings_text(alternative['settings'])}{without}: {bytes_text(alternative['peak_bytes'])}{time}{fits}"


def _proposals(plan: Plan) -> RenderableType:
    table = grid()
    for proposal in plan.proposals:
        table.add_row(one_line(proposal.command or "–"), Text("; ".join(proposal_texts(proposal))))
    return table


def proposal_texts(proposal: Proposal) -> Iterator[str]:
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
