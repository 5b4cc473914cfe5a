"""Metrics in a notebook: a row for each metric, a column for each part of the data."""

from collections.abc import Mapping
from typing import Any

from shoestring.answers.markup import EMPTY, Content, Markup, element, join
from shoestring.answers.metrics import BASELINE, comparison, is_qualifier, with_error
from shoestring.answers.notebook.layout import section, table
from shoestring.answers.values import UNKNOWN, lookup, metric_text, words
from shoestring.base.reading import number
from shoestring.base.units import count_text

_MOST_CLASSES = 12
"""More do not fit beside each other."""
_MAX_LABEL = 24


def metrics_table(parts: Mapping[str, Mapping[str, Any]], *, limit: int | None = None) -> Markup:
    """Render the numeric metrics, at most the first `limit`, and what the run has compared."""
    names = dict.fromkeys(
        name
        for values in parts.values()
        for name in values
        if number(values[name]) is not None and not is_qualifier(name)
    )
    last_part = list(parts)[-1] if parts else ""
    baselines = {name: parts[last_part].get(BASELINE + name) for name in names}
    has_baseline = any(value is not None for value in baselines.values())
    rows: list[list[Content]] = []
    for name in list(names)[:limit]:
        columns = [
            element("b", with_error(values, name)) if name in values else element("span", UNKNOWN)
            for values in parts.values()
        ]
        rows.append([words(name), *columns, *([metric_text(baselines[name])] if has_baseline else [])])
    head = ["", *parts, *([f"most frequent class ({last_part})"] if has_baseline else [])]
    compared = [
        section(f"Compared on {part} data", _compared(comparison(values)))
        for part, values in parts.items()
        if comparison(values)
    ]
    return join([table(rows, head, numeric=range(1, len(head))), compared])


def confusion(matrix: object, part: str) -> Markup:
    """Render a confusion matrix {labels, counts}, shaded by the share of a row; nothing if it is none or too large."""
    names, counts = lookup(matrix, "labels"), lookup(matrix, "counts")
    if not isinstance(names, list) or not isinstance(counts, list) or not 0 < len(names) <= _MOST_CLASSES:
        return EMPTY
    lines = [[number(value) for value in row] for row in counts if isinstance(row, list)]
    if len(lines) != len(names) or any(len(row) != len(names) or None in row for row in lines):
        return EMPTY
    labels = [words(str(name))[:_MAX_LABEL] for name in names]
    rows = [[label, *_shaded([value or 0.0 for value in row])] for label, row in zip(labels, lines, strict=True)]
    head = ["true \N{RIGHTWARDS ARROW} predicted", *labels]
    return section(f"Confusion on {part} data", table(rows, head, numeric=range(1, len(head))))


def _shaded(row: list[float]) -> list[Markup]:
    total = sum(row) or 1.0
    return [
        element(
            "span",
            count_text(round(value)),
            style="display:inline-block;min-width:44px;padding:1px 6px;border-radius:4px;text-align:center;"
            f"background:rgba(42,127,212,{0.75 * max(0.0, value) / total:.2f})",
        )
        for value in row
    ]


def _compared(rows: Mapping[str, Mapping[str, Any]]) -> Markup:
    names = [name for name in dict.fromkeys(name for row in rows.values() for name in row) if not is_qualifier(name)]
    content = [[words(title), *(with_error(row, name) for name in names)] for title, row in rows.items()]
    return table(content, ["", *map(words, names)], numeric=range(1, len(names) + 1))
