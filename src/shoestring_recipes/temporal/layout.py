"""The layout of a table of bars: its delimiter, and which column is what, also as MetaTrader 5 exports it.

MetaTrader's terminal writes tabs and `<DATE> <TIME> <OPEN> <HIGH> <LOW> <CLOSE> <TICKVOL> <VOL> <SPREAD>`, older ones
commas and no header; its Python package returns `time` in seconds since 1970, `tick_volume` and `real_volume`.
"""

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoestring.base.errors import DataError
from shoestring.base.reading import open_table

PRICES = ("open", "high", "low", "close")
NUMBERS = (*PRICES, "volume")
REQUIRED = ("time", *NUMBERS)
MAX_COLUMNS = 10_000
CLOCK = "time of day"
"""The name of a second column with the time, beside that of the date."""

ONLY_SYMBOL = "the only one"
"""The symbol of bars without a symbol."""

_TIMES = ("time", "date", "datetime", "timestamp")
_VOLUMES = ("volume", "tick_volume", "tickvol", "real_volume", "vol")
"""The first of these that a table has is its volume: that of ticks is known for every market."""
_DELIMITERS = "\t;,"
_WITHOUT_HEADER = (*PRICES, "volume")
_DAY = re.compile(r"\d{4}[-./]\d{1,2}[-./]\d{1,2}|\d{8,13}")
_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a file is divided into columns."""

    names: Sequence[str]
    """The name of each column: one of `REQUIRED`, `symbol`, `CLOCK`, or its own."""
    delimiter: str = ","
    has_header: bool = True
    symbol: str = ONLY_SYMBOL
    """The symbol of all bars of a file without a column for it."""


def read_layout(path: Path, symbol: str = ONLY_SYMBOL) -> Layout:
    """Return the layout of a file with bars of `symbol`. Raises DataError if it is no table."""
    try:
        with open_table(path) as file:
            line = next(filter(str.strip, file), "")
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        raise DataError(f"{path} cannot be read: {error}", hint="use a CSV file in UTF-8") from error
    delimiter = max(_DELIMITERS, key=line.count)
    fields = next(csv.reader([line], delimiter=delimiter), [])
    if len(fields) > MAX_COLUMNS:
        raise DataError(f"{path} has {len(fields):,} columns, more than {MAX_COLUMNS:,}", hint="use a CSV file of bars")
    if fields and _DAY.match(fields[0].strip()):
        return Layout(names=_names_without_header(fields), delimiter=delimiter, has_header=False, symbol=symbol)
    return Layout(names=canonical_names(fields), delimiter=delimiter, symbol=symbol)


def canonical_names(columns: Iterable[str]) -> list[str]:
    """Return the names of columns in their canonical form."""
    names = list(columns)
    plain = [name.strip().strip("<>").strip().lower() for name in names]
    has_both = "date" in plain and "time" in plain
    volume = next((name for name in _VOLUMES if name in plain), "volume")
    canonical = {name: name for name in (*PRICES, "symbol")} | dict.fromkeys(_TIMES, "time") | {volume: "volume"}
    if has_both:
        canonical["time"] = CLOCK
    return [canonical.get(key, name) for key, name in zip(plain, names, strict=True)]


def _names_without_header(fields: Sequence[str]) -> list[str]:
    has_clock = len(fields) > 1 and _CLOCK.fullmatch(fields[1].strip())
    known = ["time", *([CLOCK] if has_clock else []), *_WITHOUT_HEADER]
    return [*known, *(f"column {index}" for index in range(len(known), len(fields)))][: len(fields)]
