"""The sections of the report: training curves, sessions, time by cause, the plan, remarks and sources."""

from collections.abc import Iterator
from statistics import median

from shoestring.answers.document import (
    Cell,
    Column,
    Inline,
    Items,
    Labels,
    Paragraph,
    Row,
    Section,
    Span,
    Status,
    Table,
)
from shoestring.answers.event_text import describe
from shoestring.answers.report import bars, curves
from shoestring.answers.report.run import Run
from shoestring.answers.values import UNKNOWN, count, duration, label, lookup, share, size, timestamp, value_text, words
from shoestring.base.reading import number
from shoestring.base.units import plural
from shoestring.training.monitor.gpus import describe_slowest, gpu_times
from shoestring.training.monitor.time_breakdown import advice, bottleneck, compute_breakdown
from shoestring.training.session.ledger import SessionRecord

_METRIC_FIGURES = 8
_SESSION_COLUMNS = (
    Column("session"),
    Column("start"),
    Column("device"),
    Column("processes", is_numeric=True),
    Column("updates", is_numeric=True),
    Column("time", is_numeric=True),
    Column("saving", is_numeric=True),
    Column("evaluating", is_numeric=True),
    Column("waiting for data", is_numeric=True),
    Column("end"),
)


def training(run: Run) -> Section:
    """Return the curves of the loss, the metrics and the resources."""
    if not run.events_of("progress") and not run.events_of("evaluation"):
        return Section("Training", [Paragraph("No progress has been recorded yet.", "faint")])
    narrow = [
        *(curves.metric(run, name) for name in curves.metric_names(run)[:_METRIC_FIGURES]),
        *(curves.reward(run, name) for name in curves.reward_names(run)[:_METRIC_FIGURES]),
        curves.throughput(run),
        curves.memory(run),
        curves.learning_rate(run),
        curves.gradient_norm(run),
    ]
    return Section("Training", [curves.loss(run), Row(narrow)])


def history(session_records: list[SessionRecord]) -> Iterator[Section]:
    """Yield the sessions as a timeline and as a table."""
    if not session_records:
        return
    rows: list[list[Cell]] = [
        [
            str(session.number),
            timestamp(session.start),
            session.device or UNKNOWN,
            count(session.processes),
            f"{count(session.start_update)} to {count(session.reached_update)}" if session.updates else "none",
            duration(session.seconds),
            share(session.stall_seconds, session.seconds),
            share(session.evaluating_seconds, session.seconds),
            share(session.waiting_seconds, session.seconds),
            _ending(session),
        ]
        for session in session_records
    ]
    yield Section("Sessions", [bars.timeline(session_records), Table(_SESSION_COLUMNS, rows)])


def time_breakdown(run: Run) -> Iterator[Section]:
    """Yield the time of all sessions by cause, and advice on the largest causes."""
    breakdown = compute_breakdown(run.events)
    if not (largest := bottleneck(breakdown)):
        return
    rows = [[cause, duration(seconds), share(seconds, breakdown.total)] for cause, seconds in breakdown.items()]
    unmeasured = (
        ""
        if breakdown.launches is not None
        else " Arithmetic includes launches, which are measured on a GPU that trains for a second or more."
    )
    columns = [Column("cause"), Column("time", is_numeric=True), Column("share", is_numeric=True)]
    yield Section(
        "Time by cause",
        [
            Paragraph(f"The bottleneck of training was {largest}.{unmeasured}"),
            Table(columns, rows),
            Section("Ways to speed up training", [Items([f"{cause}: {text}" for cause, text in advice(breakdown)])]),
        ],
    )


def gpus(run: Run) -> Iterator[Section]:
    """Yield the GPUs of the last session with several of them."""
    if not (times := gpu_times(run.events)):
        return
    rows = [
        [
            str(rank),
            size(gpu.memory_bytes),
            share(gpu.exchange, gpu.updating),
            share(gpu.waiting, gpu.updating),
            share(gpu.input, gpu.updating),
        ]
        for rank, gpu in enumerate(times)
    ]
    names = ("memory", "exchange", "waiting for other GPUs", "waiting for data")
    columns = [Column("GPU"), *(Column(name, is_numeric=True) for name in names)]
    yield Section("GPUs", [Paragraph(describe_slowest(times)), Table(columns, rows)])


def plan(run: Run, session_records: list[SessionRecord]) -> Section:
    """Return the plan, its reasons, and its predictions beside the measurements."""
    plan_values = lookup(run.plan, "plan")
    if not isinstance(plan_values, dict):
        return Section("Plan", [Paragraph("There is no plan in this run's directory.", "faint")])
    parameters = lookup(plan_values, "memory", "parameters", "total")
    target, verdict = (str(lookup(plan_values, key) or UNKNOWN) for key in ("target", "verdict"))
    values = {
        "Settings": lookup(plan_values, "settings"),
        "Options": lookup(run.plan, "options"),
        "Disk": lookup(plan_values, "disk"),
    }
    return Section(
        "Plan",
        [
            Paragraph(f"For {target}: {verdict}. Parameters: {count(parameters)}."),
            bars.memory_parts(run),
            _planned_and_measured(run, session_records),
            Row([Section(title, [_labels(part)]) for title, part in values.items() if part and isinstance(part, dict)]),
            *_list("Reasons", lookup(plan_values, "reasons")),
            *_list("Alternatives", lookup(plan_values, "alternatives")),
        ],
    )


def remarks(run: Run) -> Iterator[Section]:
    """Yield notes, out-of-memory events, damaged checkpoints, and files that cannot be read."""
    lines: list[Inline] = [
        [Span(f"{timestamp(event['time'])}, session {event['session']}: ", "faint"), describe(event)]
        for event in run.events
        if event["event"] in ("note", "oom", "damaged")
    ]
    if skipped := sum(int(number(event.get("skipped")) or 0) for event in run.events_of("progress")):
        lines.append(
            f"{plural(skipped, 'optimizer step')} skipped on fp16 overflow and repeated with a lower loss scale"
        )
    lines += run.problems
    if lines:
        yield Section("Remarks", [Items(lines)])


def colophon(run: Run) -> str:
    """Return the sources of the numbers and the versions of the last session."""
    versions = [lookup(event, "versions") for event in run.events_of("session")]
    newest = value_text("versions", versions[-1]) if versions and versions[-1] else UNKNOWN
    last_event = timestamp(run.events[-1]["time"]) if run.events else UNKNOWN
    events = plural(len(run.events), "event")
    return f"Sources: plan.json, state.json and {events} (last: {last_event}). Versions of the last session: {newest}."


def _planned_and_measured(run: Run, session_records: list[SessionRecord]) -> Table:
    time, memory = lookup(run.plan, "plan", "time"), lookup(run.plan, "plan", "memory")
    update_seconds = [
        seconds / updates
        for event in run.events_of("progress")
        if (seconds := number(event.get("seconds"))) is not None and (updates := number(event.get("updates")))
    ]
    per_update = f"{duration(median(update_seconds))} (median)" if update_seconds else UNKNOWN
    so_far = "" if run.status == "finished" else " so far"
    total = duration(sum(session.seconds for session in session_records)) + so_far
    peak = ("peak_bytes", "low_bytes", "high_bytes")
    update = ("update_seconds", "low_update_seconds", "high_update_seconds")
    rows = [
        ["peak memory", *_expected(memory, *peak), size(run.measured_bytes)],
        ["one update", *_expected(time, *update), per_update],
        ["whole run", *_expected_run(run), total],
    ]
    predicted = lookup(run.plan, "plan", "measured", "predicted")
    if predicted is not None:
        rows += [
            ["peak memory, predicted before a probe", *_expected(predicted, *peak), size(run.measured_bytes)],
            ["one update, predicted before a probe", *_expected(predicted, *update), per_update],
        ]
    return Table([Column(), *(Column(name, is_numeric=True) for name in ("planned", "range", "measured"))], rows)


def _expected_run(run: Run) -> tuple[str, str]:
    """Format the predicted duration of all sessions; plans of earlier versions only have that of the updates."""
    job = lookup(run.plan, "plan", "job")
    if number(lookup(job, "seconds")):
        return _expected(job, "seconds", "low_seconds", "high_seconds")
    time = lookup(run.plan, "plan", "time")
    return _expected(time, "total_seconds", "low_total_seconds", "high_total_seconds")


def _expected(values: object, likely: str, low: str, high: str) -> tuple[str, str]:
    """Format the predicted value and its range."""
    limits = [value_text(key, limit) for key in (low, high) if (limit := lookup(values, key)) is not None]
    predicted = lookup(values, likely)
    return UNKNOWN if predicted is None else value_text(likely, predicted), " to ".join(limits) or UNKNOWN


def _labels(values: dict[str, object]) -> Labels:
    return Labels(
        [
            (words(name), UNKNOWN) if value is None else (label(name), value_text(name, value))
            for name, value in values.items()
        ]
    )


def _list(title: str, values: object) -> Iterator[Section]:
    if isinstance(values, list) and values:
        yield Section(title, [Items([value_text("", value) for value in values])])


def _ending(session: SessionRecord) -> Inline:
    repeated = f"; {plural(session.redone_updates, 'update')} repeated" if session.redone_updates else ""
    return [Status(session.ended), f": {session.reason}" if session.reason else "", repeated]
