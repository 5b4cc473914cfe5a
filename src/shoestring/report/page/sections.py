"""How it went and how it was meant to go: the curves, the sessions, the plan, remarks."""

from statistics import median

from shoestring.monitor import bound as monitor
from shoestring.monitor.bound import spent
from shoestring.monitor.events import Event
from shoestring.report.markup import EMPTY, Content, Markup, element, facts, join, table
from shoestring.report.page import bars, curves
from shoestring.report.page.run import Run
from shoestring.report.values import (
    UNKNOWN,
    count,
    dig,
    duration,
    label,
    moment,
    named,
    number,
    plural,
    share,
    size,
    words,
)
from shoestring.session.ledger import SessionRecord

_METRIC_FIGURES = 8


def training(run: Run) -> Markup:
    """The curves."""
    if not run.of("progress") and not run.of("evaluation"):
        return join([element("h2", "Training"), element("p", "No progress has been recorded yet.", class_="muted")])
    names = curves.metric_names(run)
    narrow = [
        *[_figure(words(name), "on validation data", curves.metric(run, name)) for name in names[:_METRIC_FIGURES]],
        _figure("Throughput", "training alone, without saving and evaluating", curves.throughput(run)),
        _figure("Memory", "reserved on the GPU; without one, resident", curves.memory(run)),
        _figure("Learning rate", "", curves.learning_rate(run)),
        _figure("Gradient norm", "before clipping", curves.gradient_norm(run)),
    ]
    return join(
        [
            element("h2", "Training"),
            _figure("Loss", "shaded: lowest to highest; dotted: a session begins", curves.loss(run), class_="wide"),
            element("div", narrow, class_="figures"),
        ]
    )


def history(found: list[SessionRecord]) -> Markup:
    """The sessions, drawn and listed."""
    if not found:
        return EMPTY
    rows = [
        [
            str(session.number),
            moment(session.start),
            session.device or UNKNOWN,
            f"{count(session.start_update)} to {count(session.reached_update)}" if session.updates else "none",
            duration(session.seconds),
            share(session.stall_seconds, session.seconds),
            share(session.evaluating_seconds, session.seconds),
            share(session.waiting_seconds, session.seconds),
            _ending(session),
        ]
        for session in found
    ]
    head = ["", "began", "device", "updates", "time", "saving", "evaluating", "waiting", "how it ended"]
    return join(
        [
            element("h2", "Sessions"),
            _figure("Timeline", "numbers are sessions", bars.timeline(found), class_="wide"),
            table(head, rows, numeric=(3, 4, 5, 6, 7)),
        ]
    )


def bound(run: Run) -> Markup:
    """Where the time of all sessions went, and what would help."""
    where = spent(run.events)
    if not (most := monitor.bound(where)):
        return EMPTY
    rows = [[cause, duration(seconds), share(seconds, where.total)] for cause, seconds in where.items()]
    unknown = "" if where.launches is not None else " A CPU does not tell launches from arithmetic."
    return join(
        [
            element("h2", "Where the time went"),
            element("p", f"Training was bound by {most}.{unknown}"),
            table(["cause", "time", "share"], rows, numeric=(1, 2)),
            element("ul", [element("li", f"{cause}: {what}") for cause, what in monitor.helps(where)]),
        ]
    )


def plan(run: Run, found: list[SessionRecord]) -> Markup:
    """What was decided before, why, and how it compares with what came."""
    decided = dig(run.plan, "plan")
    if not isinstance(decided, dict):
        return join([element("h2", "Plan"), element("p", "There is no plan in this run's directory.", class_="muted")])
    parameters = dig(decided, "memory", "parameters", "total")
    target, verdict = (str(dig(decided, key) or UNKNOWN) for key in ("target", "verdict"))
    return join(
        [
            element("h2", "Plan"),
            element("p", f"For {target}: {verdict}. Parameters: {count(parameters)}."),
            _figure("Planned memory", "at its peak, in parts", bars.memory_parts(run), class_="wide"),
            _planned_and_measured(run, found),
            element(
                "div",
                _settings("Settings", dig(decided, "settings")),
                _settings("Options", dig(run.plan, "options")),
                _settings("Disk", dig(decided, "disk")),
                class_="columns",
            ),
            _list("Reasons", dig(decided, "reasons")),
            _list("Alternatives", dig(decided, "alternatives")),
        ]
    )


def remarks(run: Run) -> Markup:
    """What else happened, and what could not be read."""
    lines: list[Content] = [
        [element("span", f"{moment(event['time'])}, session {event['session']}: ", class_="muted"), _remark(event)]
        for event in run.events
        if event["event"] in ("note", "oom", "damaged")
    ]
    if skipped := sum(int(number(event.get("skipped")) or 0) for event in run.of("progress")):
        lines.append(f"fp16 overflowed: {plural(skipped, 'optimizer step')} left out, each made again at a lower scale")
    lines += run.problems
    if not lines:
        return EMPTY
    return join([element("h2", "Remarks"), element("ul", [element("li", line) for line in lines])])


def colophon(run: Run) -> Markup:
    """Where the numbers are from."""
    versions = [dig(event, "versions") for event in run.of("session")]
    newest = named("versions", versions[-1]) if versions and versions[-1] else f"versions {UNKNOWN}"
    last = moment(run.events[-1]["time"]) if run.events else UNKNOWN
    events = plural(len(run.events), "event")
    return element("footer", f"From plan.json, state.json and {events}, the last of {last}. Last session: {newest}.")


def _planned_and_measured(run: Run, found: list[SessionRecord]) -> Markup:
    time, memory = dig(run.plan, "plan", "time"), dig(run.plan, "plan", "memory")
    update_seconds = [
        seconds / updates
        for event in run.of("progress")
        if (seconds := number(event.get("seconds"))) is not None and (updates := number(event.get("updates")))
    ]
    one_update = f"{duration(median(update_seconds))} (median)" if update_seconds else UNKNOWN
    so_far = "" if run.status == "finished" else " so far"
    spent = duration(sum(session.seconds for session in found)) + so_far
    rows = [
        ["memory at its peak", *_expected(memory, "peak_bytes", "low_bytes", "high_bytes"), size(run.measured_bytes)],
        ["one update", *_expected(time, "update_seconds", "low_update_seconds", "high_update_seconds"), one_update],
        ["the whole training", *_expected(time, "total_seconds", "low_total_seconds", "high_total_seconds"), spent],
    ]
    return table(["", "planned", "range", "measured"], rows, numeric=(1, 2, 3))


def _expected(values: object, likely: str, low: str, high: str) -> tuple[str, str]:
    """What the plan says, and between what."""
    between = [named(key, found) for key in (low, high) if (found := dig(values, key)) is not None]
    found = dig(values, likely)
    return UNKNOWN if found is None else named(likely, found), " to ".join(between) or UNKNOWN


def _figure(title: str, caption: str, drawing: Markup, *, class_: str = "") -> Markup:
    if not drawing:
        return EMPTY
    text = element("figcaption", element("b", title[:1].upper() + title[1:]), element("span", caption))
    return element("figure", text, drawing, class_=class_)


def _settings(title: str, values: object) -> Markup:
    if not isinstance(values, dict) or not values:
        return EMPTY
    pairs = [
        (words(name), UNKNOWN) if value is None else (label(name), named(name, value)) for name, value in values.items()
    ]
    return element("section", element("h3", title), facts(pairs))


def _list(title: str, values: object) -> Markup:
    if not isinstance(values, list) or not values:
        return EMPTY
    return join([element("h3", title), element("ul", [element("li", named("", value)) for value in values])])


def _ending(session: SessionRecord) -> Markup:
    again = f"; {plural(session.redone_updates, 'update')} done again" if session.redone_updates else ""
    return join(
        [
            element("span", session.ended, class_=f"ending {session.ended}"),
            f": {session.reason}" if session.reason else "",
            again,
        ]
    )


def _remark(event: Event) -> Content:
    if event["event"] == "note":
        return str(event.get("message", ""))
    if event["event"] == "damaged":
        return f"{event.get('path', '')} is damaged: {event.get('file', '')}: {event.get('why', '')}"
    if "done" in event and "during" in event:
        back = f"; back to update {count(event['back_to'])}" if "back_to" in event else ""
        return (
            f"out of memory in {event['during']} at update {count(event.get('update'))} with microbatch "
            f"{count(event.get('micro_batch'))}: {event['done']} from then on{back}"
        )
    rest = {key: value for key, value in event.items() if key not in ("time", "session", "event")}
    return f"out of memory: {named('', rest)}"
