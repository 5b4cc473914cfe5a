"""Whether runs with augmented samples are repeatable, and exact when they are resumed."""

from collections.abc import Mapping
from typing import Any

from benchmarks.tables.markdown import read_result, table

_NAMES = {
    "torchvision": "torchvision, transforms v2",
    "numpy": "a `numpy.random.default_rng()` that the dataset holds",
    "generators": "`RandomState`, `random.Random`, `torch.Generator` with seeds, which the dataset holds",
    "entropy": "a `default_rng()` that is created in each `__getitem__`",
}
_KEYS = ("equal_runs", "equal_resumed", "equal_with_workers", "equal_resumed_with_workers")


def repeatable() -> str:
    """Return a row for each source of random numbers, with those of the version before held generators were seeded."""
    result = read_result("randomness")
    before = {row["source"]: row for row in result["before"]}
    head = (
        "samples are augmented by",
        *("two runs", "stopped and continued", "two runs with workers", "continued with workers"),
        "before",
    )
    rows = [
        [
            _NAMES.get(row["source"]) or f"{row['source']} {row['version']}",
            *(_cell(row, key) for key in _KEYS),
            f"{sum(before[row['source']][key] for key in _KEYS)} of {len(_KEYS)} equal",
        ]
        for row in result["rows"]
    ]
    return table(head, rows)


def _cell(row: Mapping[str, Any], key: str) -> str:
    return "equal" if row[key] else f"differ{', with a note' if row['notes'] else ''}"
