"""Seven rewards for a completion, each a pure function of its text and what is known of its chart.

The sizes are the guide's. Mended: an answer is compared with the size of a number, not with its sign (`answers`), and
the table's reward cannot exceed its maximum. The reasoning is compared by its words, not by a sentence encoder on the
GPU, which would need a model of its own and give other numbers on other hardware.

A reward is None where nothing is known to hold the completion against: it then counts for nothing.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from shoestring.recipes.chart.answers import TAGS, is_right, said, steps_said, table_said

Known: TypeAlias = Mapping[str, Any]
"""Of the chart: `label`, and where known `chart_type`, `table` and `reasoning`."""
Reward: TypeAlias = Callable[[str, Known], float | None]

_WHOLE = re.compile(r"<think>\s*<type>.*?</type>\s*<table>.*?</table>.*?</think>\s*<answer>.*?</answer>\s*", re.DOTALL)


def form(completion: str, _: Known) -> float:
    """2 for a completion of exactly the form that is asked for."""
    return 2.0 if _WHOLE.fullmatch(completion) else 0.0


def tags(completion: str, _: Known) -> float:
    """Up to 2: a quarter for each tag that is opened and closed once, one more where they stand in order."""
    opened = [completion.find(f"<{tag}>") for tag in TAGS]
    once = [completion.count(f"<{tag}>") == completion.count(f"</{tag}>") == 1 for tag in TAGS]
    return 0.25 * sum(once) + (1.0 if all(once) and opened == sorted(opened) else 0.0)


def accuracy(completion: str, known: Known) -> float:
    """1 for the right answer, within 5%."""
    answer = said(completion, "answer")
    return 1.0 if answer is not None and is_right(answer, str(known["label"])) else 0.0


def length(completion: str, _: Known) -> float:
    """Up to 2.5: 1 for a thought of 71 to 250 characters, and a quarter for each step of it, 1.5 at most."""
    thought = said(completion, "think") or ""
    return (1.0 if 70 < len(thought) <= 250 else 0.0) + min(0.25 * len(steps_said(completion)), 1.5)


def chart_type(completion: str, known: Known) -> float | None:
    """1 for the right type of chart."""
    if known.get("chart_type") is None:
        return None
    return 1.0 if (said(completion, "type") or "").casefold() == str(known["chart_type"]).casefold() else 0.0


def table(completion: str, known: Known) -> float | None:
    """Up to 1.75: half for JSON, half for the share of columns, half for the share of cells, a quarter for the keys."""
    true = known.get("table")
    if true is None:
        return None
    given = table_said(completion)
    if given is None:
        return 0.0
    keys = 0.25 if given.keys() == {"columns", "rows"} else 0.0
    columns, rows = _listed(given.get("columns")), [_listed(row) for row in _listed(given.get("rows"))]
    headers = _share(columns, true["columns"])
    cells = _share([cell for row in rows for cell in row], [cell for row in true["rows"] for cell in row])
    return 0.5 + 0.5 * headers + 0.5 * cells + keys


def process(completion: str, known: Known) -> float | None:
    """Up to 2: 1 plus the cosine between the words of the reasoning and of the one that is known."""
    if known.get("reasoning") is None:
        return None
    ours, theirs = _words("\n".join(steps_said(completion))), _words(str(known["reasoning"]))
    if not ours or not theirs:
        return 0.0
    dot = sum(count * theirs[word] for word, count in ours.items())
    return 1.0 + dot / math.sqrt(sum(n * n for n in ours.values()) * sum(n * n for n in theirs.values()))


REWARDS: dict[str, Reward] = {
    "form": form,
    "tags": tags,
    "accuracy": accuracy,
    "length": length,
    "chart_type": chart_type,
    "table": table,
    "process": process,
}


def _share(given: list[Any], true: list[Any]) -> float:
    """Of what is true, how much was given; what was given too often or in excess costs as much."""
    ours, theirs = Counter(map(_cell, given)), Counter(map(_cell, true))
    return sum((ours & theirs).values()) / max(len(given), len(true), 1)


def _cell(value: Any) -> str:
    """Numbers alike however they are written."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return " ".join(str(value).casefold().split())
    return f"{float(value):.6g}"


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text.casefold()))
