"""Tables of facts in CSV files of this package."""

import csv
from collections.abc import Iterator
from pathlib import Path


def read_table(name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a table of this package, which may begin with comments."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    yield from csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
