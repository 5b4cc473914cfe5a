"""The sections of the page, in reading order; each is empty where it has nothing to say."""

from collections.abc import Iterable
from statistics import median

from shoestring.monitor.events import Event
from shoestring.report import bars, curves
from shoestring.report.markup import EMPTY, Content, Markup, element, facts, join, table
from shoestring.report.run import Run
from shoestring.report.sessions import Session
from shoestring.report.values import (
    UNKNOWN,
    count,
    dig,
    duration,
    label,
    metric_text,
    moment,
    named,
    number,
    numbers,
    pretty_json,
    share,
    size,
    words,
)

_SMALLER_IS_BETTER = ("loss", "error", "perplexity", "mae", "mse", "rmse")
_METRIC_FIGURES = 8


def headline(run: Run, found: list[Session]) -> Markup:
    """What it is, how it stands, what to do next, and the few numbers one looks for first."""
    title = element("div", element("h1", run.name), element("span", run.status, class_=f"status {run.status}"))
    return element("header", title, *_standing(run, found), element("dl", *_cards(run, found), class_="cards"))


def results(run: Run) -> Markup:
    """Final metrics beside the answer that needs no model."""
    validation, test = (dig(run.state, "metrics", part) or _last_metrics(run, part) for part in ("validation", "test"))
    seen = {**numbers(validation), **numbers(test)}
    names = [name for name in seen if not name.startswith(curves.BASELINE)]
    if not names:
        return EMPTY
    decisive, part = (test, "test") if numbers(test) else (validation, "validation")
    rows = [
        [
            words(name),
            metric_text(dig(validation, name)),
            metric_text(dig(test, name)),
            metric_text(dig(decisive, curves.BASELINE + name)),
        ]
        for name in names
    ]
    nested = {
        f"{words(name)} ({where})": value
        for where, metrics in (("validation", validation), ("test", test))
        if isinstance(metrics, dict)
        for name, value in metrics.items()
        if isinstance(value, dict | list)
    }
    return join(
        [
            element("h2", "Results"),
            *_against_majority(numbers(decisive), part),
            table(["metric", "validation", "test", f"most frequent class ({part})"], rows, numeric=(1, 2, 3)),
            [
                element("details", element("summary", name), element("pre", pretty_json(value)))
                for name, value in nested.items()
            ],
        ]
    )


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


def history(found: list[Session]) -> Markup:
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
            share(session.saving_seconds, session.seconds),
            share(session.evaluating_seconds, session.seconds),
            _ending(session),
        ]
        for session in found
    ]
    head = ["", "began", "device", "updates", "time", "saving", "evaluating", "how it ended"]
    return join(
        [
            element("h2", "Sessions"),
            _figure("Timeline", "numbers are sessions", bars.timeline(found), class_="wide"),
            table(head, rows, numeric=(3, 4, 5, 6)),
        ]
    )


def plan(run: Run, found: list[Session]) -> Markup:
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
    lines += run.problems
    if not lines:
        return EMPTY
    return join([element("h2", "Remarks"), element("ul", [element("li", line) for line in lines])])


def colophon(run: Run) -> Markup:
    """Where the numbers are from."""
    versions = [dig(event, "versions") for event in run.of("session")]
    newest = named("versions", versions[-1]) if versions and versions[-1] else f"versions {UNKNOWN}"
    last = moment(run.events[-1]["time"]) if run.events else UNKNOWN
    events = _plural(len(run.events), "event")
    return element("footer", f"From plan.json, state.json and {events}, the last of {last}. Last session: {newest}.")


def _standing(run: Run, found: list[Session]) -> Iterable[Markup]:
    reason = str(run.state.get("reason") or "")
    last = moment(found[-1].end) if found else UNKNOWN
    sentence = {
        "finished": f"Finished{_because(reason)}.{_weights(run)}",
        "paused": f"Paused{_because(reason)}. The next session goes on from here:",
        "failed": f"Failed{_because(reason)}. Once the cause is removed, this goes on from the last checkpoint:",
        "running": f"Running when this page was written; its last sign of life is of {last}.",
    }.get(run.status, "Nothing in this directory says how the run stands.")
    yield element("p", sentence, class_="reason")
    following = run.state.get("next")
    if following and run.status != "finished":
        yield element("pre", str(following))


def _cards(run: Run, found: list[Session]) -> Iterable[Markup]:
    def card(name: str, value: str, more: str) -> Markup:
        return element("div", element("dt", name), element("dd", value, element("small", more)))

    best = [event for event in run.of("evaluation") if event.get("best") is True]
    if best:
        metrics = numbers(best[-1].get("metrics"))
        shown = {name: value for name, value in metrics.items() if not name.startswith(curves.BASELINE)}
        first, *others = shown.items() or [("", None)]
        more = [f"{words(name)} {metric_text(value)}" for name, value in others[:2]]
        where = f"at update {count(best[-1].get('update'))}"
        yield card("Best on validation", f"{words(first[0])} {metric_text(first[1])}", ", ".join([*more, where]))
    epochs = [event.get("epoch") for event in run.of("progress")] or [None]
    total, update = run.state.get("total_updates"), run.state.get("update")
    yield card(
        "Updates",
        f"{count(update)} of {count(total)}",
        f"{share(update, total)}, epoch {count(epochs[-1])}",
    )
    if found:
        kills = sum(session.ended == "killed" for session in found)
        cut = f", {kills} of them cut off" if kills else ""
        yield card(
            "Time", duration(sum(session.seconds for session in found)), f"in {_plural(len(found), 'session')}{cut}"
        )
    peak = max((value for event in run.of("progress") if (value := number(event.get("memory_bytes")))), default=None)
    if peak:
        planned = dig(run.plan, "plan", "memory", "peak_bytes")
        yield card("Memory, at most", size(peak), f"planned {size(planned)}")


def _against_majority(metrics: dict[str, float], part: str) -> Iterable[Markup]:
    """One honest sentence for each metric that has a baseline."""
    for name, value in metrics.items():
        baseline = metrics.get(curves.BASELINE + name)
        if baseline is None:
            continue
        smaller = any(word in name.split("_") for word in _SMALLER_IS_BETTER)
        better = value < baseline if smaller else value > baseline
        claim = "better than" if better else "no better than"
        text = (
            f"{words(name).capitalize()} on {part} data is {metric_text(value)}: {claim} always answering the most "
            f"frequent class ({metric_text(baseline)})."
        )
        yield element("p", text, class_="verdict" if better else "verdict no")


def _planned_and_measured(run: Run, found: list[Session]) -> Markup:
    time, memory = dig(run.plan, "plan", "time"), dig(run.plan, "plan", "memory")
    progress = run.of("progress")
    update_seconds = [
        seconds / updates
        for event in progress
        if (seconds := number(event.get("seconds"))) is not None and (updates := number(event.get("updates")))
    ]
    used = [value for event in progress if (value := number(event.get("memory_bytes"))) is not None]
    rows = [
        [
            "memory at its peak",
            size(dig(memory, "peak_bytes")),
            f"{size(dig(memory, 'low_bytes'))} to {size(dig(memory, 'high_bytes'))}",
            size(max(used, default=None)),
        ],
        [
            "one update",
            duration(dig(time, "update_seconds")),
            f"{duration(dig(time, 'low', 'update_seconds'))} to {duration(dig(time, 'high', 'update_seconds'))}",
            f"{duration(median(update_seconds))} (median)" if update_seconds else UNKNOWN,
        ],
        [
            "the whole training",
            duration(dig(time, "total_seconds")),
            f"{duration(dig(time, 'low', 'total_seconds'))} to {duration(dig(time, 'high', 'total_seconds'))}",
            duration(sum(session.seconds for session in found)) + ("" if run.status == "finished" else " so far"),
        ],
    ]
    return table(["", "planned", "range", "measured"], rows, numeric=(1, 2, 3))


def _figure(title: str, caption: str, drawing: Markup, *, class_: str = "") -> Markup:
    if not drawing:
        return EMPTY
    text = element("figcaption", element("b", title[:1].upper() + title[1:]), element("span", caption))
    return element("figure", text, drawing, class_=class_)


def _settings(title: str, values: object) -> Markup:
    if not isinstance(values, dict) or not values:
        return EMPTY
    pairs = [(label(name), UNKNOWN if value is None else named(name, value)) for name, value in values.items()]
    return element("section", element("h3", title), facts(pairs))


def _list(title: str, values: object) -> Markup:
    if not isinstance(values, list) or not values:
        return EMPTY
    return join([element("h3", title), element("ul", [element("li", named("", value)) for value in values])])


def _ending(session: Session) -> Markup:
    again = f"; {_plural(session.redone_updates, 'update')} done again" if session.redone_updates else ""
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
    rest = {key: value for key, value in event.items() if key not in ("time", "session", "event")}
    return f"out of memory: {named('', rest)}"


def _last_metrics(run: Run, part: str) -> object:
    return next((event.get("metrics") for event in reversed(run.of("evaluation")) if event.get("part") == part), None)


def _weights(run: Run) -> str:
    """Where the weights to use are, as far as they are there."""
    kinds = {"best": "The best weights are in best/.", "light": "The last weights are in light/."}
    return "".join(f" {text}" for name, text in kinds.items() if (run.path / name).is_dir())


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _plural(amount: int, word: str) -> str:
    return f"{count(amount)} {word}" if amount == 1 else f"{count(amount)} {word}s"
