"""The answers to held-out prompts, side by side: before training and after each epoch."""

from collections.abc import Iterator, Mapping
from typing import Any

from shoestring.answers.document import Cell, Column, Element, Paragraph, Section, Span, Table
from shoestring.answers.report.run import Run
from shoestring.answers.values import UNKNOWN, count
from shoestring.base.units import plural
from shoestring.training.monitor.events import Event


def answers(run: Run) -> Iterator[Element]:
    """Yield a row for each prompt, with its reference if there is one, and a column for each time it was answered."""
    events = {event.get("update", 0): event for event in run.events_of("answers") if _rows(event)}
    if not events:
        return
    columns = [events[update] for update in sorted(events)]
    # Prompts may be equal, and a changed option may have led to others.
    prompts = dict.fromkeys(key for event in columns for key in _by_prompt(event))
    references = {
        key: row.get("reference") for event in columns for key, row in _by_prompt(event).items() if row.get("reference")
    }
    head = ["prompt", *(["reference"] if references else []), *map(_title, columns)]
    lines: list[list[Cell]] = [
        [
            key[1],
            *([str(references.get(key, UNKNOWN))] if references else []),
            *(_answer(_by_prompt(event).get(key)) for event in columns),
        ]
        for key in prompts
    ]
    yield Section(
        "Answers to held-out prompts",
        [
            Paragraph(f"Answers that ended by themselves: {'; '.join(map(_stop_mark, columns))}."),
            Table([Column(name, is_prose=True) for name in head], lines),
        ],
    )


def _rows(event: Event) -> list[Mapping[str, Any]]:
    rows = event.get("rows")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _by_prompt(event: Event) -> dict[tuple[int, str], Mapping[str, Any]]:
    return {(index, str(row.get("prompt", ""))): row for index, row in enumerate(_rows(event))}


def _title(event: Event) -> str:
    return f"after epoch {count(event.get('epoch'))}" if event.get("update") else "before training"


def _stop_mark(event: Event) -> str:
    rows = _rows(event)
    return f"{_title(event)} {sum(row.get('stopped') is True for row in rows)} of {plural(len(rows), 'answer')}"


def _answer(row: Mapping[str, Any] | None) -> Cell:
    if row is None:
        return UNKNOWN
    answer = str(row.get("answer", ""))
    return [answer, Span(" (cut at the largest length)", "faint")] if row.get("stopped") is False else answer
