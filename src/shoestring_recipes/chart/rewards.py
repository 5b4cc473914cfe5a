"""Seven rewards for a completion, each a pure function of its text and its chart's annotations.

They reward what those of the published guide do, but differ from its code (`guide_rewards`): a part of the format earns
a part of the reward; the tolerance of an answer is relative to the label's absolute value (`answers`); the reward of a
table cannot exceed its maximum; steps are lines; the reasoning earns 1 plus its similarity. The reasoning is compared
by its words instead of by a sentence encoder, which would need another model and depend on the hardware.

A reward is None where the chart lacks the annotation that it needs; it is then left out of the sum.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from shoestring_recipes.chart.answers import TAGS, is_correct, parse_steps, parse_table, parse_tag

Annotations: TypeAlias = Mapping[str, Any]
"""A chart's `label` and optionally `chart_type`, `table` and `reasoning`."""
Reward: TypeAlias = Callable[[str, Annotations], float | None]

_FORMAT = re.compile(r"<think>\s*<type>.*?</type>\s*<table>.*?</table>.*?</think>\s*<answer>.*?</answer>\s*", re.DOTALL)


def form(completion: str, _: Annotations) -> float:
    """Return 2 for a completion in exactly the requested format."""
    return 2.0 if _FORMAT.fullmatch(completion) else 0.0


def tags(completion: str, _: Annotations) -> float:
    """Return up to 2: 0.25 for each tag that is opened and closed once, and 1 where all of them are in order."""
    positions = [completion.find(f"<{tag}>") for tag in TAGS]
    unique = [completion.count(f"<{tag}>") == completion.count(f"</{tag}>") == 1 for tag in TAGS]
    return 0.25 * sum(unique) + (1.0 if all(unique) and positions == sorted(positions) else 0.0)


def accuracy(completion: str, annotations: Annotations) -> float:
    """Return 1 for a correct answer, within 5%."""
    answer = parse_tag(completion, "answer")
    return 1.0 if answer is not None and is_correct(answer, str(annotations["label"])) else 0.0


def length(completion: str, _: Annotations) -> float:
    """Return up to 2.5: 1 for a thought of 71 to 250 characters, and 0.25 for each of its steps, at most 1.5."""
    thought = parse_tag(completion, "think") or ""
    return (1.0 if 70 < len(thought) <= 250 else 0.0) + min(0.25 * len(parse_steps(completion)), 1.5)


def chart_type(completion: str, annotations: Annotations) -> float | None:
    """Return 1 for the correct type of chart."""
    if annotations.get("chart_type") is None:
        return None
    predicted, expected = parse_tag(completion, "type") or "", str(annotations["chart_type"])
    return 1.0 if predicted.casefold() == expected.casefold() else 0.0


def table(completion: str, annotations: Annotations) -> float | None:
    """Return up to 1.75: 0.5 for JSON, 0.5 times the share of columns and that of cells, and 0.25 for the keys."""
    expected = annotations.get("table")
    if expected is None:
        return None
    predicted = parse_table(completion)
    if predicted is None:
        return 0.0
    keys = 0.25 if predicted.keys() == {"columns", "rows"} else 0.0
    columns, rows = _as_list(predicted.get("columns")), [_as_list(row) for row in _as_list(predicted.get("rows"))]
    headers = _share(columns, expected["columns"])
    cells = _share([cell for row in rows for cell in row], [cell for row in expected["rows"] for cell in row])
    return 0.5 + 0.5 * headers + 0.5 * cells + keys


def process(completion: str, annotations: Annotations) -> float | None:
    """Return up to 2: 1 plus the cosine similarity of the word counts of the reasoning and of the annotated one."""
    if annotations.get("reasoning") is None:
        return None
    predicted, expected = "\n".join(parse_steps(completion)), str(annotations["reasoning"])
    return 1.0 + word_similarity(predicted, expected) if _count_words(predicted) and _count_words(expected) else 0.0


def word_similarity(first: str, second: str) -> float:
    """Return the cosine similarity of the word counts of two texts; 0 where one of them has no word."""
    counts, reference = _count_words(first), _count_words(second)
    if not counts or not reference:
        return 0.0
    dot = sum(count * reference[word] for word, count in counts.items())
    return dot / math.sqrt(sum(n * n for n in counts.values()) * sum(n * n for n in reference.values()))


def digits(completion: str, _: Annotations) -> float:
    """Return the share of digits, of which a policy of random weights generates some, unlike what others look for."""
    return sum(map(str.isdigit, completion)) / max(len(completion), 1)


REWARDS: dict[str, Reward] = {
    "form": form,
    "tags": tags,
    "accuracy": accuracy,
    "length": length,
    "chart_type": chart_type,
    "table": table,
    "process": process,
}


def _share(predicted: list[Any], expected: list[Any]) -> float:
    """Return the share of `expected` cells that were predicted; repeated and superfluous cells lower it."""
    common = Counter(map(_normalize_cell, predicted)) & Counter(map(_normalize_cell, expected))
    return sum(common.values()) / max(len(predicted), len(expected), 1)


def _normalize_cell(value: Any) -> str:
    """Return a cell as text in which equal numbers are equal, however they are written."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return " ".join(str(value).casefold().split())
    return f"{float(value):.6g}"


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _count_words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text.casefold()))
