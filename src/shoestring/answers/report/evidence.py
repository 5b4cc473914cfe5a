"""The evidence of an evaluation: the confusion matrix, histograms, and single samples with their texts and images."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from shoestring.answers.document import (
    Cell,
    Column,
    Element,
    Histogram,
    Image,
    Paragraph,
    Row,
    Section,
    Table,
)
from shoestring.answers.report import classes
from shoestring.answers.report.run import Run
from shoestring.answers.values import UNKNOWN, count, lookup, metric_text, numbers, words
from shoestring.base.reading import number, read_bytes
from shoestring.training.monitor.events import Event
from shoestring.training.run_directory.contents import IMAGE
from shoestring.training.run_directory.directory import RunDirectory

Example: TypeAlias = tuple[dict[str, Any], list[Image]]
"""The row of an example, and its images."""

_MOST_IMAGE_BYTES = 1_000_000
_MOST_ROWS = 100
_GROUPS = {"best": "Best", "worst": "Worst", "random": "Random"}


def evidence(run: Run) -> Iterator[Element]:
    """Yield the evidence of the last evaluation of the test part, or else of the best epoch."""
    event = _event(run)
    content = lookup(event, "evidence")
    if event is None or not isinstance(content, dict):
        return
    parts: list[Element] = [
        *classes.figures(lookup(content, "confusion_matrix")),
        *_histograms(lookup(content, "histograms")),
        *_examples(run, event, _rows(content, "examples")),
        *_samples(_rows(content, "samples")),
    ]
    if not parts:
        return
    if event["part"] == "test":
        description = "On the test data, which has no influence on the training."
    else:
        description = f"On the validation data, after update {count(event.get('update'))}, the best so far."
    yield Section("Evaluation in detail", [Paragraph(description, "faint"), *parts])


def _event(run: Run) -> Event | None:
    evaluations = [event for event in run.events_of("evaluation") if "evidence" in event]
    tests = [event for event in evaluations if event.get("part") == "test"]
    best = [event for event in evaluations if event.get("part") == "validation" and event.get("best") is True]
    return next(reversed(tests or best), None)


def _rows(content: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    rows = content.get(name)
    return [row for row in rows if isinstance(row, dict)][:_MOST_ROWS] if isinstance(rows, list) else []


def _histograms(histograms: object) -> Iterator[Element]:
    if not isinstance(histograms, dict):
        return
    drawings = [drawing for name, content in histograms.items() if (drawing := _histogram(str(name), content))]
    if drawings:
        yield Row(drawings)


def _histogram(name: str, histogram: object) -> Histogram | None:
    edges, counts = (_numbers(lookup(histogram, key)) for key in ("edges", "counts"))
    if not counts or len(edges) != len(counts) + 1:
        return None
    title = words(name)
    return Histogram(
        title=title,
        caption=f"Of {count(sum(counts))} samples",
        label=f"Histogram of {title}",
        edges=edges,
        counts=counts,
        x=title,
        y="samples",
    )


def _examples(run: Run, event: Event, rows: Sequence[dict[str, Any]]) -> Iterator[Element]:
    if not rows:
        return
    folder = RunDirectory(run.path).illustrations(str(event["part"]), int(event.get("update", 0)))
    headings = list(dict.fromkeys(name for row in rows for name in _mapping(row, "texts")))
    examples = [(row, _pictures(folder, row)) for row in rows]
    content = [_table(headings, examples)] if headings else _gallery(examples)
    yield Section("Examples", content)


def _table(headings: Sequence[str], examples: Sequence[Example]) -> Table:
    """Return texts, with a row for each example and a column for each heading."""
    columns = [Column(name, is_prose=True) for name in ("example", *map(words, headings))]
    rows: list[list[Cell]] = [
        [
            Section("", [Paragraph(_title(row), "strong"), Row(pictures)]),
            *(str(_mapping(row, "texts").get(name, UNKNOWN)) for name in headings),
            _scores(row),
        ]
        for row, pictures in examples
    ]
    return Table([*columns, Column("scores")], rows)


def _gallery(examples: Sequence[Example]) -> list[Element]:
    """Return the images of each example in a line."""
    return [
        Section(_title(row), [Paragraph(_scores(row), "faint"), Row(pictures)])
        for row, pictures in examples
        if pictures
    ]


def _samples(rows: Sequence[dict[str, Any]]) -> Iterator[Element]:
    names = list(dict.fromkeys(name for row in rows for name in numbers(row.get("scores"))))
    if not names:
        return
    columns = [Column("sample"), *(Column(words(name), is_numeric=True) for name in names)]
    lines = [[_name(row), *(metric_text(numbers(row.get("scores")).get(name)) for name in names)] for row in rows]
    title = f"Single samples, the worst first ({count(len(rows))})"
    yield Section(title, [Table(columns, lines)], is_folded=True)


def _pictures(folder: Path, row: dict[str, Any]) -> list[Image]:
    """Return the images of an example that are in the run's directory."""
    files = row.get("images")
    pictures: list[Image] = []
    for file in files if isinstance(files, list) else []:
        name, caption = str(lookup(file, "file")), str(lookup(file, "caption"))
        if not re.fullmatch(IMAGE, name):
            continue
        try:
            content = read_bytes(folder / name, follow=False, max_bytes=_MOST_IMAGE_BYTES)
        except (OSError, ValueError):
            continue
        pictures.append(Image(content, f"{caption}: {_title(row)}", caption))
    return pictures


def _title(row: dict[str, Any]) -> str:
    return f"{_GROUPS.get(str(row.get('group')), 'Example')}: {_name(row)}"


def _name(row: dict[str, Any]) -> str:
    return str(row.get("name", f"sample {count(row.get('index'))}"))


def _scores(row: dict[str, Any]) -> str:
    return ", ".join(f"{words(name)} {metric_text(value)}" for name, value in numbers(row.get("scores")).items())


def _mapping(row: dict[str, Any], name: str) -> dict[str, Any]:
    value = row.get(name)
    return value if isinstance(value, dict) else {}


def _numbers(values: object) -> list[float]:
    """Return a list of numbers; empty if it has anything else."""
    parsed = [number(value) for value in values] if isinstance(values, list) else []
    return [] if None in parsed else [value for value in parsed if value is not None]
