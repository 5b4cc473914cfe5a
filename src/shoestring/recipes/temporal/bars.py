"""OHLCV bars: read from a CSV file and checked, every problem at once with its line."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pandas as pd

from shoestring.errors import DataError, QuestionError

PRICES = ("open", "high", "low", "close")
NUMBERS = (*PRICES, "volume")
NEEDED = ("time", *NUMBERS)
NAMES_OF_TIME = ("time", "date", "datetime", "timestamp")
LISTED = 20

Problem: TypeAlias = tuple[pd.Series, Callable[[int], str]]  # in which rows, and what to say of one


def sample_bars() -> pd.DataFrame:
    """1,047 real daily bars of GOOG, 2004-08-19 to 2008-10-14, from matplotlib's sample data; as `read_bars`."""
    import matplotlib

    path = Path(matplotlib.get_data_path()) / "sample_data" / "goog.npz"
    try:
        with np.load(path, allow_pickle=False) as file:
            rows = file["price_data"]
    except OSError as error:
        raise QuestionError(
            f"the sample bars cannot be read: {error}",
            hint="this matplotlib came without its sample data; give a CSV file of bars instead",
        ) from error
    numbers = {name: rows[name].astype("float64") for name in NUMBERS}
    return _sorted(pd.DataFrame({"symbol": "GOOG", "time": rows["date"].astype("datetime64[us]"), **numbers}))


def read_bars(path: Path) -> pd.DataFrame:
    """The bars of a CSV file: `symbol`, `time` (UTC, without zone) and float64 `open high low close volume`.

    The file has a header with these names in any case and order; `time` may be called date, datetime or timestamp,
    `symbol` may be absent, other columns are left alone. Times are ISO 8601; one with an offset is taken to UTC, one
    without is taken as it stands. Each symbol's rows ascend in time. The result is sorted by symbol, then time.

    Raises DataError with every problem found, each with its line in the file (the header is line 1).
    """
    header = _header(path)
    columns = {header.index(name): known for known, name in _columns(header).items()}
    absent = [f"there is no column {name}" for name in NEEDED if name not in columns.values()]
    repeated = [f"there is more than one column {name}" for name in _repeated(header)]
    text = _text(path, header, columns)
    frame, problems = _parsed(text)
    count = sum(int(rows.sum()) for rows, _ in problems)
    if absent or repeated or count or not len(frame):
        empty = [] if len(frame) else ["there are no rows"]
        listed = list(islice(_described(path, problems), LISTED))
        more = [f"and {count - LISTED:,} more"] if count > LISTED else []
        raise DataError(
            f"{path} cannot be used: {len(absent) + len(repeated) + len(empty) + count:,} problems",
            problems=[*absent, *repeated, *empty, *listed, *more],
            hint=f"columns are {', '.join(NEEDED)} and, of several symbols, symbol; this file has {', '.join(header)}",
        )
    return _sorted(frame)


def _sorted(frame: pd.DataFrame) -> pd.DataFrame:
    # Categories sort by their codes, which is what keeps a million rows quick; a stable order needs no ties.
    frame["symbol"] = frame["symbol"].astype("category")
    return frame.sort_values(["symbol", "time"], ignore_index=True)


def _header(path: Path) -> list[str]:
    try:
        names = pd.read_csv(path, nrows=0, encoding="utf-8-sig", skipinitialspace=True).columns
    except pd.errors.EmptyDataError as error:
        raise DataError(f"{path} is empty", hint=f"it needs a header: {','.join(NEEDED)}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}", hint="give a CSV file in UTF-8") from error
    return [str(name).strip() for name in names]


def _columns(header: list[str]) -> dict[str, str]:
    """The first column of the file for each known name."""
    found: dict[str, str] = {}
    for name in header:
        known = _known(name)
        if known:
            found.setdefault(known, name)
    return found


def _known(name: str) -> str | None:
    name = name.lower()
    if name in NAMES_OF_TIME:
        return "time"
    return name if name in (*NUMBERS, "symbol") else None


def _repeated(header: list[str]) -> list[str]:
    known = [name for name in map(_known, header) if name]
    return sorted({name for name in known if known.count(name) > 1})
