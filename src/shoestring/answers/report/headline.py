"""The top of the page: the run's name, its status, the next command, and the most important numbers."""

from collections.abc import Iterable

from shoestring.answers.document import Command, Element, Paragraph, key_figure
from shoestring.answers.metrics import is_qualifier
from shoestring.answers.report.run import Run
from shoestring.answers.values import (
    UNKNOWN,
    count,
    duration,
    lookup,
    metric_text,
    numbers,
    share,
    size,
    timestamp,
    words,
)
from shoestring.base.reading import number
from shoestring.base.units import plural
from shoestring.training.session.ledger import SessionRecord


def headline(run: Run, session_records: list[SessionRecord]) -> Iterable[Element]:
    """Yield the status, the next command and the key figures."""
    yield from _status(run, session_records)
    yield from _figures(run, session_records)


def _status(run: Run, session_records: list[SessionRecord]) -> Iterable[Element]:
    reason, command = (str(run.state.get(key) or "") for key in ("reason", "next"))
    reason_text = f": {reason}" if reason else ""
    last_event = timestamp(session_records[-1].end) if session_records else UNKNOWN
    sentence, command_label = {
        "finished": (f"Finished{reason_text}.{_weights_text(run)}", ""),
        "paused": (f"Paused{reason_text}.", "Continue in the next session with:"),
        "failed": (f"Failed{reason_text}.", "Fix the cause, then continue from the last checkpoint with:"),
        "running": (
            f"Running or interrupted; the last recorded event is from {last_event}.",
            "If the run was interrupted, continue from the last checkpoint with:",
        ),
    }.get(run.status, ("The status of the run is unknown: state.json contains no valid status.", ""))
    if command and command_label:
        yield Paragraph(f"{sentence} {command_label}")
        yield Command(command)
    else:
        yield Paragraph(sentence)


def _figures(run: Run, session_records: list[SessionRecord]) -> Iterable[Element]:
    best = [event for event in run.events_of("evaluation") if event.get("best") is True]
    if best:
        metrics = numbers(best[-1].get("metrics"))
        main_metrics = {name: value for name, value in metrics.items() if not is_qualifier(name)}
        (name, value), *other_metrics = main_metrics.items() or [("", None)]
        details = [f"{words(name)} {metric_text(value)}" for name, value in other_metrics[:2]]
        details.append(f"at update {count(best[-1].get('update'))}")
        yield key_figure("Best on validation data", f"{words(name)} {metric_text(value)}", ", ".join(details))
    epochs = [event.get("epoch") for event in run.events_of("progress")] or [None]
    total, update = run.state.get("total_updates"), run.state.get("update")
    yield key_figure(
        "Updates",
        f"{count(update)} of {count(total)}",
        f"{share(update, total)}, epoch {count(epochs[-1])}",
    )
    if session_records:
        kills = sum(session.ended == "killed" for session in session_records)
        killed = f", {kills} of them killed" if kills else ""
        gpu_seconds = sum(session.gpu_seconds for session in session_records)
        gpu_text = f"; {duration(gpu_seconds)} with a GPU" if gpu_seconds else ""
        yield key_figure(
            "Time",
            duration(sum(session.seconds for session in session_records)),
            f"in {plural(len(session_records), 'session')}{killed}{gpu_text}",
        )
    if padded := _total_of(run, "padded_length"):
        length, seconds = _total_of(run, "length"), _total_of(run, "seconds")
        yield key_figure(
            "Tokens",
            f"{count(round(length / seconds)) if seconds else UNKNOWN} / s",
            f"{1 - length / padded:.0%} padding",
        )
    if run.measured_bytes:
        planned = lookup(run.plan, "plan", "memory", "peak_bytes")
        yield key_figure("Peak memory", size(run.measured_bytes), f"planned {size(planned)}")


def _total_of(run: Run, key: str) -> float:
    """Return the sum of a value of all progress events."""
    return sum(value for event in run.events_of("progress") if (value := number(event.get(key))) is not None)


def _weights_text(run: Run) -> str:
    """Name the folders of saved weights that exist."""
    folders = {"best": "The best weights are in best/.", "light": "The last weights are in light/."}
    return "".join(f" {text}" for name, text in folders.items() if (run.path / name).is_dir())
