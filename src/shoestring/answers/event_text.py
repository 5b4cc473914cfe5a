"""Sentences for the events of a run, as the page and the terminal show them."""

from collections.abc import Callable

from shoestring.answers.metrics import is_qualifier
from shoestring.answers.values import count, duration, lookup, metric_text, numbers, size, value_text, words
from shoestring.base.units import plural
from shoestring.training.monitor.events import Event

_MAIN_METRICS = 3


def describe(event: Event) -> str:
    """Describe an event in one sentence; an empty text for measurements, which are not shown one by one."""
    text = _TEXTS.get(event["event"])
    return text(event) if text else ""


def _session(event: Event) -> str:
    facts = [str(event[name]) for name in ("device", "precision") if event.get(name)]
    if "micro_batch" in event:
        facts.append(f"microbatch {count(event['micro_batch'])}")
    return f"session {event['session']} begins at update {count(event.get('update'))}: {', '.join(facts)}"


def _evaluation(event: Event) -> str:
    metrics = [(name, value) for name, value in numbers(event.get("metrics")).items() if not is_qualifier(name)]
    texts = [f"{words(name)} {metric_text(value)}" for name, value in metrics[:_MAIN_METRICS]]
    best = " (best)" if event.get("best") is True else ""
    return f"{event.get('part', '')} at update {count(event.get('update'))}: {', '.join(texts)}{best}"


def _answers(event: Event) -> str:
    rows = event.get("rows")
    skipped = f"skipped: {event['skipped']}" if event.get("skipped") else ""
    return f"held-out prompts {skipped or plural(len(rows) if isinstance(rows, list) else 0, 'answer')}"


def _save(event: Event) -> str:
    """Weights are saved with the evaluation that made them the best, or with a checkpoint."""
    if event.get("kind") != "full":
        return ""
    cost = f"{size(event.get('bytes'))} in {duration(event.get('seconds'))}"
    return f"saved the checkpoint of update {count(event.get('update'))}: {cost}"


def _out_of_memory(event: Event) -> str:
    if "done" in event and "during" in event:
        resumed = f"; resumed from the checkpoint of update {count(event['back_to'])}" if "back_to" in event else ""
        place = "" if event["during"] == "update" else f" in {event['during']}"
        return (
            f"out of memory{place} at update {count(event.get('update'))} with microbatch "
            f"{count(event.get('micro_batch'))}: continued with {event['done']}{resumed}"
        )
    details = {key: value for key, value in event.items() if key not in ("time", "session", "event")}
    return f"out of memory: {value_text('', details)}"


_TEXTS: dict[str, Callable[[Event], str]] = {
    "session": _session,
    "evaluation": _evaluation,
    "answers": _answers,
    "save": _save,
    "unsaved": lambda event: f"{lookup(event, 'what') or 'something'} was not saved: {event.get('why', '')}",
    "damaged": lambda event: f"{event.get('path', '')} is damaged: {event.get('file', '')}: {event.get('why', '')}",
    "backup": lambda event: (
        f"copied the checkpoint of update {count(event.get('update'))} to {event.get('url', '')}: "
        f"{size(event.get('sent_bytes'))} sent in {duration(event.get('seconds'))}"
    ),
    "backup_failed": lambda event: (
        f"the checkpoint of update {count(event.get('update'))} was not copied to {event.get('url', '')}: "
        f"{event.get('why', '')}"
    ),
    "note": lambda event: str(event.get("message", "")),
    "oom": _out_of_memory,
    "restart": lambda event: (
        f"all processes start again from update {count(event.get('update'))}: {event.get('reason', '')}"
    ),
    "stop": lambda event: (
        f"{event.get('status', '')} at update {count(event.get('update'))}: {event.get('reason', '')}"
    ),
}
