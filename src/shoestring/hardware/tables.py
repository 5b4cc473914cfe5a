"""Tables of facts in CSV files of this package."""

import csv
from collections.abc import Iterator
from pathlib import Path

from shoestring.base.reading import open_table


def read_table(name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a table of this package, which may begin with comments."""
    with open_table(Path(__file__).with_name(name)) as file:
        yield from csv.DictReader(line for line in file if not line.startswith("#"))
