"""The top of the page: what it is, how it stands, what to do next, and the numbers one looks for first."""

from collections.abc import Iterable

from shoestring.report.markup import Markup, element
from shoestring.report.metrics import is_about_another
from shoestring.report.page.run import Run
from shoestring.report.values import (
    UNKNOWN,
    count,
    dig,
    duration,
    metric_text,
    moment,
    numbers,
    plural,
    share,
    size,
    words,
)
from shoestring.session.ledger import SessionRecord


def headline(run: Run, found: list[SessionRecord]) -> Markup:
    title = element("div", element("h1", run.name), element("span", run.status, class_=f"status {run.status}"))
    return element("header", title, *_standing(run, found), element("dl", *_cards(run, found), class_="cards"))


def _standing(run: Run, found: list[SessionRecord]) -> Iterable[Markup]:
    reason, following = (str(run.state.get(key) or "") for key in ("reason", "next"))
    because = f": {reason}" if reason else ""
    last = moment(found[-1].end) if found else UNKNOWN
    sentence, lead = {
        "finished": (f"Finished{because}.{_weights(run)}", ""),
        "paused": (f"Paused{because}.", "The next session goes on from here:"),
        "failed": (f"Failed{because}.", "Once the cause is removed, this goes on from the last checkpoint:"),
        "running": (
            f"Running, or cut off since; its last sign of life is of {last}.",
            "If nothing runs any more, this goes on from the last checkpoint:",
        ),
    }.get(run.status, ("Nothing in this directory says how the run stands.", ""))
    if following and lead:
        yield element("p", f"{sentence} {lead}", class_="reason")
        yield element("pre", following)
    else:
        yield element("p", sentence, class_="reason")


def _cards(run: Run, found: list[SessionRecord]) -> Iterable[Markup]:
    def card(name: str, value: str, more: str) -> Markup:
        return element("div", element("dt", name), element("dd", value, element("small", more)))

    best = [event for event in run.of("evaluation") if event.get("best") is True]
    if best:
        metrics = numbers(best[-1].get("metrics"))
        shown = {name: value for name, value in metrics.items() if not is_about_another(name)}
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
        gpu = sum(session.gpu_seconds for session in found)
        billed = f"; {duration(gpu)} with a GPU" if gpu else ""
        yield card(
            "Time",
            duration(sum(session.seconds for session in found)),
            f"in {plural(len(found), 'session')}{cut}{billed}",
        )
    if run.measured_bytes:
        planned = dig(run.plan, "plan", "memory", "peak_bytes")
        yield card("Memory, at most", size(run.measured_bytes), f"planned {size(planned)}")


def _weights(run: Run) -> str:
    """Where the weights to use are, as far as they are there."""
    kinds = {"best": "The best weights are in best/.", "light": "The last weights are in light/."}
    return "".join(f" {text}" for name, text in kinds.items() if (run.path / name).is_dir())
