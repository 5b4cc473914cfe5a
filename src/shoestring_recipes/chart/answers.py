"""Parsing a completion into its tagged parts, and comparing its answer with the label.

<think>
<type>bar</type>
<table>{"columns": ["year", "price"], "rows": [[2001, 3.4]]}</table>
first step
second step
</think>
<answer>3.4</answer>
"""

from __future__ import annotations

import math
import re
from typing import Any

from shoestring.base.reading import parse_json

TOLERANCE = 0.05
"""The largest relative error of a correct number (ChartQA's relaxed accuracy: Masry et al., 2022)."""

TAGS = ("think", "type", "table", "answer")

_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def parse_tag(completion: str, tag: str) -> str | None:
    """Return the text between the first `<tag>` and the next `</tag>`, or None where there is no such pair."""
    match = re.search(rf"<{tag}>(.*?)</{tag}>", completion, re.DOTALL)
    return match[1].strip() if match else None


def parse_table(completion: str) -> dict[str, Any] | None:
    """Return the JSON object in `<table>`: `{"columns": [...], "rows": [[...], ...]}`, or any other object.

    None where there is no JSON object.
    """
    try:
        value = parse_json(parse_tag(completion, "table") or "", strict=False)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def parse_steps(completion: str) -> list[str]:
    """Return the lines of reasoning: the text of `<think>` without the chart type and the table."""
    thought = re.sub(r"<(type|table)>.*?</\1>", "", parse_tag(completion, "think") or "", flags=re.DOTALL)
    return [line.strip() for line in thought.splitlines() if line.strip()]


def parse_number(text: str) -> float | None:
    """Return `text` as a number, ignoring a currency or percent sign; None where it is no finite number."""
    bare = text.strip().strip("$€£%").strip()
    if not _NUMBER.fullmatch(bare):
        return None
    value = float(bare.replace(",", ""))
    return value if math.isfinite(value) else None


def is_correct(answer: str, label: str) -> bool:
    """Return whether `answer` is correct by relaxed accuracy.

    Numbers may differ by 5% of the label's absolute value (a signed negative label would accept any larger answer);
    texts must be equal up to case and whitespace.
    """
    predicted, expected = parse_number(answer), parse_number(label)
    if predicted is None or expected is None:
        return " ".join(answer.casefold().split()) == " ".join(label.casefold().split())
    return abs(predicted - expected) <= TOLERANCE * abs(expected)
