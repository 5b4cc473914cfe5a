"""The evidence of an evaluation: the confusion matrix, histograms, and single samples with their texts and images."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from shoestring.answers.renderers.markup import EMPTY, Content, Markup, element, image, join, table
from shoestring.answers.renderers.page import svg
from shoestring.answers.report import classes, curves
from shoestring.answers.report.run import Run
from shoestring.answers.values import UNKNOWN, count, lookup, metric_text, numbers, words
from shoestring.base.reading import number, read_bytes
from shoestring.training.monitor.events import Event
from shoestring.training.session.directory import RunDirectory
from shoestring.training.session.own_files import IMAGE_NAME

Example: TypeAlias = tuple[dict[str, Any], list[Content]]
"""The row of an example, and its images."""

_MOST_IMAGE_BYTES = 1_000_000
_MOST_ROWS = 100
_GROUPS = {"best": "Best", "worst": "Worst", "random": "Random"}


def evidence(run: Run) -> Markup:
    """Render the evidence of the last evaluation of the test part, or else of the best epoch."""
    event = _event(run)
    content = lookup(event, "evidence")
    if event is None or not isinstance(content, dict):
        return EMPTY
    rendered = [
        classes.figures(lookup(content, "confusion_matrix")),
        _histograms(lookup(content, "histograms")),
        _examples(run, event, _rows(content, "examples")),
        _samples(_rows(content, "samples")),
    ]
    if not any(rendered):
        return EMPTY
    if event["part"] == "test":
        description = "On the test data, which has no influence on the training."
    else:
        description = f"On the validation data, after update {count(event.get('update'))}, the best so far."
    return join([element("h2", "Evaluation in detail"), element("p", description, class_="muted"), *rendered])


def _event(run: Run) -> Event | None:
    evaluations = [event for event in run.events_of("evaluation") if "evidence" in event]
    tests = [event for event in evaluations if event.get("part") == "test"]
    best = [event for event in evaluations if event.get("part") == "validation" and event.get("best") is True]
    return next(reversed(tests or best), None)


def _rows(content: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    rows = content.get(name)
    return [row for row in rows if isinstance(row, dict)][:_MOST_ROWS] if isinstance(rows, list) else []


def _histograms(histograms: object) -> Markup:
    if not isinstance(histograms, dict):
        return EMPTY
    drawings = [_histogram(str(name), histogram) for name, histogram in histograms.items()]
    return element("div", drawings, class_="figures") if any(drawings) else EMPTY


def _histogram(name: str, histogram: object) -> Markup:
    edges, counts = (_numbers(lookup(histogram, key)) for key in ("edges", "counts"))
    if not counts or len(edges) != len(counts) + 1:
        return EMPTY
    title = words(name)

    def paint(axes: Any) -> None:
        widths = [high - low or 1 for low, high in pairwise(edges)]
        axes.bar(edges[:-1], counts, width=widths, align="edge", color=svg.BLUE, edgecolor=svg.CARD, linewidth=0.8)
        axes.set_xlabel(title[:60])
        axes.set_ylabel("samples")

    drawing = svg.draw(f"Histogram of {title}", paint, width=curves.HALF[0], height=curves.HALF[1])
    caption = element("figcaption", element("b", title), element("span", f"Of {count(sum(counts))} samples"))
    return element("figure", caption, drawing)


def _examples(run: Run, event: Event, rows: Sequence[dict[str, Any]]) -> Markup:
    if not rows:
        return EMPTY
    folder = RunDirectory(run.path).illustrations(str(event["part"]), int(event.get("update", 0)))
    headings = list(dict.fromkeys(name for row in rows for name in _mapping(row, "texts")))
    render = partial(_table, headings) if headings else _gallery
    return join([element("h3", "Examples"), render([(row, _pictures(folder, row)) for row in rows])])


def _table(headings: Sequence[str], examples: Sequence[Example]) -> Markup:
    """Render texts, with a row for each example and a column for each heading."""
    lines = [
        [
            [element("b", _title(row)), element("div", pictures, class_="pictures")],
            *(str(_mapping(row, "texts").get(name, UNKNOWN)) for name in headings),
            _scores(row),
        ]
        for row, pictures in examples
    ]
    return element("div", table(["example", *map(words, headings), "scores"], lines), class_="texts")


def _gallery(examples: Sequence[Example]) -> Markup:
    """Render the images of each example in a line."""
    sections = [
        element(
            "section",
            element("h4", _title(row)),
            element("p", _scores(row), class_="muted"),
            element("div", pictures, class_="pictures"),
        )
        for row, pictures in examples
        if pictures
    ]
    return element("div", sections, class_="examples")


def _samples(rows: Sequence[dict[str, Any]]) -> Markup:
    names = list(dict.fromkeys(name for row in rows for name in numbers(row.get("scores"))))
    if not names:
        return EMPTY
    lines = [[_name(row), *(metric_text(numbers(row.get("scores")).get(name)) for name in names)] for row in rows]
    head = ["sample", *map(words, names)]
    title = f"Single samples, the worst first ({count(len(rows))})"
    return element("details", element("summary", title), table(head, lines, numeric=range(1, len(head))))


def _pictures(folder: Path, row: dict[str, Any]) -> list[Content]:
    """Return the images of an example that are in the run's directory."""
    files = row.get("images")
    pictures: list[Content] = []
    for file in files if isinstance(files, list) else []:
        name, caption = str(lookup(file, "file")), str(lookup(file, "caption"))
        if not IMAGE_NAME.fullmatch(name):
            continue
        try:
            content = read_bytes(folder / name, follow=False, max_bytes=_MOST_IMAGE_BYTES)
        except (OSError, ValueError):
            continue
        pictures.append(element("figure", image(content, f"{caption}: {_title(row)}"), element("figcaption", caption)))
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
