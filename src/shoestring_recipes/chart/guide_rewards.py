"""The seven rewards as the code of the published guide computes them (`rewards=guide`), its mistakes included.

Behaviour after `grpo_utils.py` of potate4/chartrl at 4948fe6, called with one completion at a time:
`benchmarks/chart/rewards.py` runs that code and compares. In a batch its `table` uses the table of the preceding
completion where there is no JSON; that is the only thing which is not reproduced. It compares the reasoning by
sentence embeddings of MiniLM; here they are word counts, as in `rewards`.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from shoestring_recipes.chart.answers import TAGS
from shoestring_recipes.chart.rewards import Annotations, Reward, word_similarity

_START, _MARKS = "<think>\n<type>", ("</type>\n<table>", "</table>", "</think>\n<answer>")
_MALFORMED = (AttributeError, IndexError, KeyError, RecursionError, TypeError)
"""What an odd table raises; what was earned before stays."""


def form(completion: str, _: Annotations) -> float:
    """Return 2 for the parts in order with exactly these line breaks; lines may follow the answer."""
    if not completion.startswith(_START):
        return 0.0
    position = len(_START)
    for mark in _MARKS:
        position = completion.find(mark, position)
        if position < 0:
            return 0.0
        position += len(mark)
    return 2.0 if f"{completion}\n".find("</answer>\n", position) >= 0 else 0.0


def tags(completion: str, _: Annotations) -> float:
    """Return 2 if every tag, and both pairs of tags that adjoin with a line break, occur exactly once; else 0."""
    names = [mark for tag in TAGS for mark in (f"<{tag}>", f"</{tag}>")]
    return 2.0 if all(completion.count(mark) == 1 for mark in (*names, _START, _MARKS[0])) else 0.0


def accuracy(completion: str, annotations: Annotations) -> float:
    """Return 1 for the label, or a number with an error of 5% at most, divided by the label with its sign."""
    if "<answer>" not in completion or "<think>" not in completion:
        return 0.0
    answer, label = _last(completion, "answer").rstrip("."), str(annotations["label"])
    if not answer:
        return 0.0
    try:
        expected = float(label) + 1e-6
    except ValueError:
        return 1.0 if answer.lower() == label.lower() else 0.0
    try:
        return 1.0 if abs(float(answer) - expected) / expected <= 0.05 else 0.0
    except (ValueError, ZeroDivisionError):
        return 0.0


def length(completion: str, _: Annotations) -> float:
    """Return up to 2.5: 1 for a thought of 71 to 250 characters; 0.25, and as much per `<step-`, at most 1.5."""
    thought = _last(completion, "think")
    return (1.0 if 70 < len(thought) <= 250 else 0.0) + min(0.25 * (thought.count("<step-") + 1), 1.5)


def chart_type(completion: str, annotations: Annotations) -> float | None:
    """Return 1 for the type of chart."""
    expected = annotations.get("chart_type")
    if expected is None:
        return None
    return 1.0 if _last(completion, "type").lower() == str(expected).lower() else 0.0


def table(completion: str, annotations: Annotations) -> float | None:
    """Return 0.5 for JSON, also in a fenced block, 0.25 for the keys, and what `_compare` returns."""
    expected = annotations.get("table")
    if expected is None:
        return None
    block = _last(completion, "table")
    if "```json" in block:
        block = block.split("```json")[-1].split("```")[0].strip()
    else:
        block = block.replace("\n", "").strip()
    try:
        predicted = json.loads(block, parse_int=str, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError):
        return 0.0
    has_keys = False
    with suppress(TypeError):
        has_keys = set(predicted) == {"columns", "rows"}
    share = _compare(predicted, dict(expected)) if isinstance(predicted, dict) else 0.0
    return 0.5 + share + (0.25 if has_keys else 0.0)


def process(completion: str, annotations: Annotations) -> float | None:
    """Return the similarity of the text between the table and the end of the thought to the annotated reasoning."""
    reasoning = annotations.get("reasoning")
    if reasoning is None:
        return None
    steps = completion.split("</table>")[-1].strip().split("</think>")[0].strip()
    return word_similarity(steps, str(reasoning))


REWARDS: dict[str, Reward] = {
    "form": form,
    "tags": tags,
    "accuracy": accuracy,
    "length": length,
    "chart_type": chart_type,
    "table": table,
    "process": process,
}


def _last(completion: str, tag: str) -> str:
    """Return the text from the last `<tag>` to the next `</tag>`; either may be missing."""
    return completion.split(f"<{tag}>")[-1].strip().split(f"</{tag}>")[0].strip()


def _compare(predicted: dict[str, Any], expected: dict[str, Any]) -> float:
    """Return 0.5 times the share of columns, and 0.5 for each cell divided by the number of rows alone.

    Both sort the columns and the rows in place, the expected table first; where one cannot be sorted, it stays as it
    is. Numbers of a completion are compared as the text that they are written as.
    """
    for sort in (_sort_columns, _sort_rows):
        with suppress(*_MALFORMED):
            sort(expected)
            sort(predicted)
    share = 0.0
    with suppress(*_MALFORMED):
        columns, names = predicted["columns"], expected["columns"]
        for index in range(min(len(columns), len(names))):  # `columns` may be any JSON
            if columns[index].lower() == names[index].lower():
                share += 0.5 / len(columns)
    with suppress(*_MALFORMED):
        if _has_plain_rows(predicted) and _has_plain_rows(expected):
            rows = predicted["rows"]
            for row, expected_row in zip(rows, expected["rows"], strict=False):
                for cell, expected_cell in zip(row, expected_row, strict=False):
                    if cell == expected_cell:
                        share += 0.5 / len(rows)
    return share


def _sort_columns(table: dict[str, Any]) -> None:
    table["columns"] = sorted(table["columns"], key=lambda name: name.lower())


def _sort_rows(table: dict[str, Any]) -> None:
    if _has_plain_rows(table):
        table["rows"] = sorted(table["rows"])


def _has_plain_rows(table: dict[str, Any]) -> bool:
    return all(isinstance(row, list) for row in table["rows"])
