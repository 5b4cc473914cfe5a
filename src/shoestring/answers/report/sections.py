"""The sections of the page: training curves, sessions, time by cause, the plan, remarks and sources."""

from statistics import median

from shoestring.answers.event_text import describe
from shoestring.answers.renderers.markup import EMPTY, Content, Markup, element, facts, join, table
from shoestring.answers.report import bars, curves
from shoestring.answers.report.run import Run
from shoestring.answers.values import UNKNOWN, count, duration, label, lookup, share, size, timestamp, value_text, words
from shoestring.base.reading import number
from shoestring.base.units import plural
from shoestring.training.monitor.gpus import describe_slowest, gpu_times
from shoestring.training.monitor.time_breakdown import advice, bottleneck, compute_breakdown
from shoestring.training.session.ledger import SessionRecord

_METRIC_FIGURES = 8


def training(run: Run) -> Markup:
    """Render the curves of the loss, the metrics and the resources."""
    if not run.events_of("progress") and not run.events_of("evaluation"):
        return join([element("h2", "Training"), element("p", "No progress has been recorded yet.", class_="muted")])
    names, rewards = curves.metric_names(run), curves.reward_names(run)
    narrow = [
        *[figure(words(name), "On validation data", curves.metric(run, name)) for name in names[:_METRIC_FIGURES]],
        *[figure(words(name), "As logged in training", curves.reward(run, name)) for name in rewards[:_METRIC_FIGURES]],
        figure("Throughput", "Training only, without saving and evaluating", curves.throughput(run)),
        figure("Memory", "Reserved GPU memory, or resident memory on a CPU", curves.memory(run)),
        figure("Learning rate", "", curves.learning_rate(run)),
        figure("Gradient norm", "Before clipping", curves.gradient_norm(run)),
    ]
    return join(
        [
            element("h2", "Training"),
            figure("Loss", "Shaded: minimum to maximum. Dotted: session start.", curves.loss(run), class_="wide"),
            element("div", narrow, class_="figures"),
        ]
    )


def history(session_records: list[SessionRecord]) -> Markup:
    """Render the sessions as a timeline and as a table."""
    if not session_records:
        return EMPTY
    rows = [
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
    head = [
        "session",
        "start",
        "device",
        "processes",
        "updates",
        "time",
        "saving",
        "evaluating",
        "waiting for data",
        "end",
    ]
    return join(
        [
            element("h2", "Sessions"),
            figure("Timeline", "Numbers identify the sessions.", bars.timeline(session_records), class_="wide"),
            table(head, rows, numeric=(3, 4, 5, 6, 7, 8)),
        ]
    )


def time_breakdown(run: Run) -> Markup:
    """Render the time of all sessions by cause, and advice on the largest causes."""
    breakdown = compute_breakdown(run.events)
    if not (largest := bottleneck(breakdown)):
        return EMPTY
    rows = [[cause, duration(seconds), share(seconds, breakdown.total)] for cause, seconds in breakdown.items()]
    unmeasured = (
        ""
        if breakdown.launches is not None
        else " Arithmetic includes launches, which are measured on a GPU that trains for a second or more."
    )
    return join(
        [
            element("h2", "Time by cause"),
            element("p", f"The bottleneck of training was {largest}.{unmeasured}"),
            table(["cause", "time", "share"], rows, numeric=(1, 2)),
            element("h3", "Ways to speed up training"),
            element("ul", [element("li", f"{cause}: {text}") for cause, text in advice(breakdown)]),
        ]
    )


def gpus(run: Run) -> Markup:
    """Render the GPUs of the last session with several of them."""
    if not (times := gpu_times(run.events)):
        return EMPTY
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
    head = ["GPU", "memory", "exchange", "waiting for other GPUs", "waiting for data"]
    return join(
        [
            element("h2", "GPUs"),
            element("p", describe_slowest(times)),
            table(head, rows, numeric=(1, 2, 3, 4)),
        ]
    )


def plan(run: Run, session_records: list[SessionRecord]) -> Markup:
    """Render the plan, its reasons, and its predictions beside the measurements."""
    plan_values = lookup(run.plan, "plan")
    if not isinstance(plan_values, dict):
        return join([element("h2", "Plan"), element("p", "There is no plan in this run's directory.", class_="muted")])
    parameters = lookup(plan_values, "memory", "parameters", "total")
    target, verdict = (str(lookup(plan_values, key) or UNKNOWN) for key in ("target", "verdict"))
    return join(
        [
            element("h2", "Plan"),
            element("p", f"For {target}: {verdict}. Parameters: {count(parameters)}."),
            figure("Planned memory", "At its peak, by part", bars.memory_parts(run), class_="wide"),
            _planned_and_measured(run, session_records),
            element(
                "div",
                _settings("Settings", lookup(plan_values, "settings")),
                _settings("Options", lookup(run.plan, "options")),
                _settings("Disk", lookup(plan_values, "disk")),
                class_="columns",
            ),
            _list("Reasons", lookup(plan_values, "reasons")),
            _list("Alternatives", lookup(plan_values, "alternatives")),
        ]
    )


def remarks(run: Run) -> Markup:
    """Render notes, out-of-memory events, damaged checkpoints, and files that cannot be read."""
    lines: list[Content] = [
        [element("span", f"{timestamp(event['time'])}, session {event['session']}: ", class_="muted"), describe(event)]
        for event in run.events
        if event["event"] in ("note", "oom", "damaged")
    ]
    if skipped := sum(int(number(event.get("skipped")) or 0) for event in run.events_of("progress")):
        lines.append(
            f"{plural(skipped, 'optimizer step')} skipped on fp16 overflow and repeated with a lower loss scale"
        )
    lines += run.problems
    if not lines:
        return EMPTY
    return join([element("h2", "Remarks"), element("ul", [element("li", line) for line in lines])])


def colophon(run: Run) -> Markup:
    """Render the sources of the numbers and the versions of the last session."""
    versions = [lookup(event, "versions") for event in run.events_of("session")]
    newest = value_text("versions", versions[-1]) if versions and versions[-1] else UNKNOWN
    last_event = timestamp(run.events[-1]["time"]) if run.events else UNKNOWN
    events = plural(len(run.events), "event")
    return element(
        "footer",
        f"Sources: plan.json, state.json and {events} (last: {last_event}). Versions of the last session: {newest}.",
    )


def _planned_and_measured(run: Run, session_records: list[SessionRecord]) -> Markup:
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
    return table(["", "planned", "range", "measured"], rows, numeric=(1, 2, 3))


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


def figure(title: str, caption: str, drawing: Markup, *, class_: str = "") -> Markup:
    if not drawing:
        return EMPTY
    text = element("figcaption", element("b", title[:1].upper() + title[1:]), element("span", caption))
    return element("figure", text, drawing, class_=class_)


def _settings(title: str, values: object) -> Markup:
    if not isinstance(values, dict) or not values:
        return EMPTY
    pairs = [
        (words(name), UNKNOWN) if value is None else (label(name), value_text(name, value))
        for name, value in values.items()
    ]
    return element("section", element("h3", title), facts(pairs))


def _list(title: str, values: object) -> Markup:
    if not isinstance(values, list) or not values:
        return EMPTY
    return join([element("h3", title), element("ul", [element("li", value_text("", value)) for value in values])])


def _ending(session: SessionRecord) -> Markup:
    repeated = f"; {plural(session.redone_updates, 'update')} repeated" if session.redone_updates else ""
    return join(
        [
            element("span", session.ended, class_=f"ending {session.ended}"),
            f": {session.reason}" if session.reason else "",
            repeated,
        ]
    )
