"""OHLCV bars: read from a CSV file and checked, every problem at once with its line."""

import csv
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shoestring.errors import DataError, UsageError
from shoestring.recipes.rows import SHOWN, Rows

PRICES = ("open", "high", "low", "close")
NUMBERS = (*PRICES, "volume")
NEEDED = ("time", *NUMBERS)
NAMES_OF_TIME = ("time", "date", "datetime", "timestamp")

SAMPLE = "GOOG as matplotlib brings it along"

Problem: TypeAlias = "tuple[pd.Series[bool], Callable[[int], str]]"
"""In which rows it is, and what to say of one of them."""


def sample_bars() -> pd.DataFrame:
    """1,047 real daily bars of GOOG, 2004-08-19 to 2008-10-14, from matplotlib's sample data; as of `read_bars`.

    Raises UsageError where matplotlib was packaged without its sample data.
    """
    try:
        with np.load(_sample_file(), allow_pickle=False) as file:
            rows = file["price_data"]
    except OSError as error:
        raise UsageError(
            f"the sample bars cannot be read: {error}",
            hint="this matplotlib came without its sample data; give a CSV file of bars instead",
        ) from error
    numbers = {name: rows[name].astype("float64") for name in NUMBERS}
    return _sorted(pd.DataFrame({"symbol": "GOOG", "time": rows["date"].astype("datetime64[us]"), **numbers}))


def _sample_file() -> Path:
    """Beside matplotlib's code, where it is found without loading that; or elsewhere, which only matplotlib knows."""
    inside = Path("sample_data", "goog.npz")
    found = find_spec("matplotlib")
    beside = Path(found.origin).parent / "mpl-data" / inside if found and found.origin else None
    if beside and beside.is_file():
        return beside
    import matplotlib

    return Path(matplotlib.get_data_path()) / inside


def read_bars(path: Path, rows: Rows) -> pd.DataFrame:
    """The bars of a CSV file: `symbol`, `time` (UTC, without zone), `open high low close volume` (float64).

    The file has a header with these names in any case and order; `time` may be called date, datetime or timestamp,
    `symbol` may be absent, other columns are left alone. Times are ISO 8601; one with an offset is taken to UTC, one
    without is taken as it stands. Each symbol's rows ascend in time. The result is sorted by symbol, then time.

    Rows that cannot be used go to `rows`, each with all that is wrong with it and its line in the file (the header is
    line 1). Where they are skipped the bars beside them become neighbours, as they are around a holiday.

    Raises DataError with every problem found.
    """
    header = _header(path)
    general = [f"there is no column {name}" for name in NEEDED if name not in header]
    general += [f"{name}: more than one column has this name" for name in _repeated(header)]
    if general:
        _refuse(path, general, hint=f"{', '.join(NEEDED)} are needed; this file has {', '.join(header) or 'nothing'}")
    raw, ragged = _raw(path, header)
    if raw.empty and not ragged:
        _refuse(path, ["there are no rows"])
    bars = _parsed(raw)
    good = _judged(path, rows, raw, bars, ragged)
    rows.settle(len(raw) + len(ragged))
    return _sorted(bars[good])


def _judged(path: Path, rows: Rows, raw: pd.DataFrame, bars: pd.DataFrame, ragged: dict[int, str]) -> NDArray[np.bool_]:
    """Which rows can be used; the others are told of in the order of the file."""
    problems = [(found.to_numpy(), describe) for found, describe in _problems(raw, bars) if found.any()]
    bad = np.zeros(len(raw), dtype=np.bool_)
    for found, _ in problems:
        bad |= found
    if not ragged and not problems:
        return ~bad
    lines = _lines(path, ragged)
    wrong = sorted([*((line, -1) for line in ragged), *((lines[row], row) for row in np.flatnonzero(bad).tolist())])
    for number, (line, row) in enumerate(wrong):
        # A file of a million bad rows need not have them all described.
        says = [describe(row) for found, describe in problems if found[row]] if row >= 0 and number < SHOWN else []
        rows.bad(path, line, "; ".join(says) or ragged.get(line, ""))
    return ~bad


def _lines(path: Path, ragged: Collection[int]) -> list[int]:
    """The line of each row: pandas passes over blank ones, so a row's number is not its line."""
    with path.open(encoding="utf-8-sig") as file:
        filled = [number for number, line in enumerate(file, start=1) if line.strip() and number not in ragged]
    return filled[1:]


def _refuse(path: Path, problems: list[str], *, hint: str | None = None) -> NoReturn:
    count = len(problems)
    raise DataError(f"{path} has {count:,} {'problem' if count == 1 else 'problems'}", problems=problems, hint=hint)


def _sorted(bars: pd.DataFrame) -> pd.DataFrame:
    # Categories are compared by their codes, which keeps a million rows quick; their own order is alphabetical.
    bars["symbol"] = bars["symbol"].astype("category")
    return bars.sort_values(["symbol", "time"], ignore_index=True)


def _header(path: Path) -> list[str]:
    """The file's columns, those that are needed under their own name whatever their case."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            names = next(filter(None, csv.reader(file)), [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read: {error}", hint="give a CSV file in UTF-8") from error
    lowered = {name: name.strip().lower() for name in names}
    known = {**dict.fromkeys(NAMES_OF_TIME, "time"), **{name: name for name in (*NUMBERS, "symbol")}}
    return [known.get(lowered[name], name) for name in names]


def _repeated(header: list[str]) -> list[str]:
    return [name for name in ("symbol", *NEEDED) if header.count(name) > 1]


def _raw(path: Path, header: list[str]) -> tuple[pd.DataFrame, dict[int, str]]:
    """The needed columns as they stand in the file, and lines that have more fields than there are names."""
    # Where every row has a field too many, pandas takes the first for an index and says nothing.
    with suppress(pd.errors.ParserError):
        rows = _columns(path, header, ())
        if isinstance(rows.index, pd.RangeIndex):
            return rows, {}
    ragged = _ragged(path, len(header))
    try:
        return _columns(path, header, ragged), ragged
    except pd.errors.ParserError as error:
        hint = "write numbers without separators of thousands, and close every quote"
        _refuse(path, [str(error).strip()], hint=hint)


def _ragged(path: Path, columns: int) -> dict[int, str]:
    """What to say of each line with more fields than names; pandas stops at the first."""
    found = {}
    # A quote that never ends is one for pandas to name.
    with path.open(encoding="utf-8-sig", newline="") as file, suppress(csv.Error):
        reader = csv.reader(file)
        for row in reader:
            if len(row) > columns:
                found[reader.line_num] = f"{len(row)} fields under {columns} names"
    return found


def _columns(path: Path, header: list[str], without: Collection[int]) -> pd.DataFrame:
    """The needed columns but for some lines: texts where a column is not all numbers."""
    # Names that repeat or are empty would be refused or renamed; only the needed ones matter, and they are unique.
    names = [name if name in (*NEEDED, "symbol") else f"{name} in column {i}" for i, name in enumerate(header)]
    try:
        rows = pd.read_csv(
            path,
            header=0,
            names=names,
            skiprows=[line - 1 for line in without],
            dtype={"time": "str", "symbol": "str"},
            # A symbol may be called NA; a number that is missing fails to parse below.
            keep_default_na=False,
            encoding="utf-8-sig",
            skipinitialspace=True,
            low_memory=False,
        )
    except UnicodeDecodeError as error:
        raise DataError(f"{path} cannot be read: {error}", hint="give a CSV file in UTF-8") from error
    if "symbol" not in header:
        rows["symbol"] = "the only one"
    return rows[["symbol", *NEEDED]]


def _parsed(raw: pd.DataFrame) -> pd.DataFrame:
    """The rows with NaN and NaT where a text does not parse."""
    times = pd.to_datetime(raw["time"], format="ISO8601", utc=True, errors="coerce").dt.tz_localize(None)
    numbers = {name: pd.to_numeric(raw[name], errors="coerce").astype("float64") for name in NUMBERS}
    return pd.DataFrame({"symbol": raw["symbol"], "time": times.astype("datetime64[us]"), **numbers})


def _problems(raw: pd.DataFrame, bars: pd.DataFrame) -> Iterator[Problem]:
    """Everything that may be wrong with a row."""
    yield raw["symbol"] == "", lambda _: "symbol is empty"
    yield bars["time"].isna(), lambda row: f"time {raw['time'][row]!r} is no time; write 2024-01-31 or 2024-01-31 09:30"
    before = bars.groupby("symbol", observed=True)["time"].shift()
    yield (
        bars["time"] < before,
        lambda row: f"time {bars['time'][row]} comes before {before[row]} above it ({raw['symbol'][row]})",
    )
    repeated = bars.duplicated(["symbol", "time"]) & bars["time"].notna()
    yield repeated, lambda row: f"time {bars['time'][row]} is there already ({raw['symbol'][row]})"
    for name in NUMBERS:
        yield from _wrong_numbers(name, raw[name], bars[name])
    # A high below the low is one of these two, whichever way the body lies.
    body = bars[["open", "close"]]
    yield (
        bars["high"] < body.max(axis=1, skipna=False),
        lambda row: f"high {bars['high'][row]:g} is below open or close",
    )
    yield (
        bars["low"] > body.min(axis=1, skipna=False),
        lambda row: f"low {bars['low'][row]:g} is above open or close",
    )


def _wrong_numbers(name: str, text: "pd.Series[str]", values: "pd.Series[float]") -> Iterator[Problem]:
    yield ~pd.Series(np.isfinite(values)), lambda row: f"{name} {str(text[row])!r} is no finite number"
    if name in PRICES:
        yield values <= 0, lambda row: f"{name} {values[row]:g} is not positive"
    else:
        yield values < 0, lambda row: f"{name} {values[row]:g} is negative"
