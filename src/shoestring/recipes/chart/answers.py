"""What a completion says, and whether its answer is right.

<think>
<type>bar</type>
<table>{"columns": ["year", "price"], "rows": [[2001, 3.4]]}</table>
first step
second step
</think>
<answer>3.4</answer>
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

TOLERANCE = 0.05
"""Of the true value, by which a number may be off (ChartQA's relaxed accuracy: Masry et al., 2022)."""

TAGS = ("think", "type", "table", "answer")

_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def said(completion: str, tag: str) -> str | None:
    """What stands between the first `<tag>` and the `</tag>` after it; None where there is none."""
    found = re.search(rf"<{tag}>(.*?)</{tag}>", completion, re.DOTALL)
    return found[1].strip() if found else None


def table_said(completion: str) -> dict[str, Any] | None:
    """The table as `{"columns": [...], "rows": [[...], ...]}` or whatever JSON object stands there."""
    try:
        value = json.loads(said(completion, "table") or "")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def steps_said(completion: str) -> list[str]:
    """The lines of reasoning: what is left of the thought when chart type and table are taken out."""
    thought = re.sub(r"<(type|table)>.*?</\1>", "", said(completion, "think") or "", flags=re.DOTALL)
    return [line.strip() for line in thought.splitlines() if line.strip()]


def number(text: str) -> float | None:
    """The number that `text` is, with a currency or percent sign at most; None for anything else."""
    bare = text.strip().strip("$€£%").strip()
    if not _NUMBER.fullmatch(bare):
        return None
    value = float(bare.replace(",", ""))
    return value if math.isfinite(value) else None


def is_right(answer: str, label: str) -> bool:
    """Relaxed accuracy: numbers within 5% of the label's size, texts equal but for case and space.

    The size, not the value: divided by a negative label every answer would be near enough.
    """
    given, true = number(answer), number(label)
    if given is None or true is None:
        return " ".join(answer.casefold().split()) == " ".join(label.casefold().split())
    return abs(given - true) <= TOLERANCE * abs(true)
