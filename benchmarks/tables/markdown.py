"""Results of benchmarks as Markdown."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.catalogue import RESULTS

Result = dict[str, Any]
Row = Mapping[str, Any]


def read_result(name: str) -> Result:
    value: Result = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return value


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def percent(share: float, digits: int = 1) -> str:
    return f"{share:.{digits}%}"
