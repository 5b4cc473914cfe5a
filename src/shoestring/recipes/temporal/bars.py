"""Reading OHLCV bars from a CSV file, with validation that reports all problems at once with their lines."""

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
from shoestring.reading import open_table
from shoestring.recipes.rows import MAX_LISTED, BadRows

PRICES = ("open", "high", "low", "close")
NUMBERS = (*PRICES, "volume")
REQUIRED = ("time", *NUMBERS)
MAX_COLUMNS = 10_000
TIME_COLUMNS = ("time", "date", "datetime", "timestamp")

SAMPLE = "GOOG from matplotlib's sample data"

Problem: TypeAlias = "tuple[pd.Series[bool], Callable[[int], str]]"
"""The rows that have the problem, and a function that describes the problem in a given row."""


def load_sample_bars() -> pd.DataFrame:
    """Return 1,047 real daily bars of GOOG, 2004-08-19 to 2008-10-14, from matplotlib's sample data.

    The format is that of `read_bars`. Raises UsageError if matplotlib was packaged without its sample data.
    """
    try:
        with np.load(_find_sample_file(), allow_pickle=False) as file:
            rows = file["price_data"]
    except OSError as error:
        raise UsageError(
            f"the sample bars of matplotlib cannot be read: {error}",
            hint="this matplotlib came without its sample data; use a CSV file of bars instead: --set data=PATH",
        ) from error
    numbers = {name: rows[name].astype("float64") for name in NUMBERS}
    return _sort(pd.DataFrame({"symbol": "GOOG", "time": rows["date"].astype("datetime64[us]"), **numbers}))


def _find_sample_file() -> Path:
    """Return the path of the sample data, if possible without importing matplotlib."""
    relative_path = Path("sample_data", "goog.npz")
    spec = find_spec("matplotlib")
    default_path = Path(spec.origin).parent / "mpl-data" / relative_path if spec and spec.origin else None
    if default_path and default_path.is_file():
        return default_path
    import matplotlib

    return Path(matplotlib.get_data_path()) / relative_path


def read_bars(path: Path, bad_rows: BadRows) -> pd.DataFrame:
    """Return the bars of a CSV file: `symbol`, `time` (UTC, without zone), `open high low close volume` (float64).

    The file has a header with these names in any case and order; `time` may be named date, datetime or timestamp,
    `symbol` may be absent, and other columns are ignored. Times are ISO 8601; one with an offset is converted to UTC,
    one without is taken as UTC. The rows of each symbol ascend in time. The result is sorted by symbol, then time.

    Unusable rows are reported to `rows`, each with all its problems and its line in the file (the header is line 1). If
    they are skipped, the bars before and after them become neighbours, as they are around a holiday.

    Raises DataError with all problems.
    """
    try:
        return _read_bars(path, bad_rows)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read: {error}", hint="use a CSV file in UTF-8") from error


def _read_bars(path: Path, bad_rows: BadRows) -> pd.DataFrame:
    header = _read_header(path)
    column_problems = [f"there is no column {name}" for name in REQUIRED if name not in header]
    column_problems += [f"{name}: more than one column has this name" for name in _repeated_columns(header)]
    if column_problems:
        hint = f"the columns {', '.join(REQUIRED)} are required; this file has {', '.join(header) or 'no columns'}"
        _raise_data_error(path, column_problems, hint=hint)
    raw, ragged_lines = _read_raw(path, header)
    if raw.empty and not ragged_lines:
        _raise_data_error(path, ["there are no rows"])
    bars = _parse(raw)
    usable = _validate(path, bad_rows, raw, bars, ragged_lines)
    bad_rows.finish(len(raw) + len(ragged_lines))
    return _sort(bars[usable])


def _validate(
    path: Path, bad_rows: BadRows, raw: pd.DataFrame, bars: pd.DataFrame, ragged_lines: dict[int, str]
) -> NDArray[np.bool_]:
    """Return which rows are usable, and report the others to `rows` in the order of the file."""
    problems = [(mask.to_numpy(), describe) for mask, describe in _find_problems(raw, bars) if mask.any()]
    bad = np.zeros(len(raw), dtype=np.bool_)
    for mask, _ in problems:
        bad |= mask
    if not ragged_lines and not problems:
        return ~bad
    lines = _row_lines(path, ragged_lines)
    # Ragged lines are no rows of `raw`, so their row is -1.
    bad_lines = sorted(
        [*((line, -1) for line in ragged_lines), *((lines[row], row) for row in np.flatnonzero(bad).tolist())]
    )
    for number, (line, row) in enumerate(bad_lines):
        descriptions = []
        # Only the first problems are displayed, so a file of a million bad rows is not described in full.
        if row >= 0 and number < MAX_LISTED:
            descriptions = [describe(row) for mask, describe in problems if mask[row]]
        bad_rows.report(path, line, "; ".join(descriptions) or ragged_lines.get(line, ""))
    return ~bad


def _row_lines(path: Path, ragged_lines: Collection[int]) -> list[int]:
    """Return the line of each row; it differs from the row's number because pandas skips blank lines."""
    with open_table(path) as file:
        lines = [number for number, line in enumerate(file, start=1) if line.strip() and number not in ragged_lines]
    return lines[1:]


def _raise_data_error(path: Path, problems: list[str], *, hint: str | None = None) -> NoReturn:
    count = len(problems)
    raise DataError(f"{path} has {count:,} {'problem' if count == 1 else 'problems'}", problems=problems, hint=hint)


def _sort(bars: pd.DataFrame) -> pd.DataFrame:
    # Categories are sorted by their codes, which is fast for a million rows; codes are in alphabetical order.
    bars["symbol"] = bars["symbol"].astype("category")
    return bars.sort_values(["symbol", "time"], ignore_index=True)


def _read_header(path: Path) -> list[str]:
    """Return the names of the file's columns, with the required ones in their canonical form."""
    try:
        with open_table(path) as file:
            names = next(filter(None, csv.reader(file)), [])
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        raise DataError(f"{path} cannot be read: {error}", hint="use a CSV file in UTF-8") from error
    if len(names) > MAX_COLUMNS:
        raise DataError(f"{path} has {len(names):,} columns, more than {MAX_COLUMNS:,}", hint="use a CSV file of bars")
    lowered = {name: name.strip().lower() for name in names}
    canonical = {**dict.fromkeys(TIME_COLUMNS, "time"), **{name: name for name in (*NUMBERS, "symbol")}}
    return [canonical.get(lowered[name], name) for name in names]


def _repeated_columns(header: list[str]) -> list[str]:
    return [name for name in ("symbol", *REQUIRED) if header.count(name) > 1]


def _read_raw(path: Path, header: list[str]) -> tuple[pd.DataFrame, dict[int, str]]:
    """Return the required columns unparsed, and a problem for each line with more fields than the header."""
    # If every row has one field too many, pandas silently uses the first as the index.
    with suppress(pd.errors.ParserError):
        rows = _read_columns(path, header, ())
        if isinstance(rows.index, pd.RangeIndex):
            return rows, {}
    ragged_lines = _find_ragged_lines(path, len(header))
    try:
        return _read_columns(path, header, ragged_lines), ragged_lines
    except pd.errors.ParserError as error:
        hint = "write numbers without thousands separators, and close every quote"
        _raise_data_error(path, [str(error).strip()], hint=hint)


def _find_ragged_lines(path: Path, columns: int) -> dict[int, str]:
    """Return a problem for each line with more fields than the header; pandas would report the first alone."""
    problems = {}
    # An unclosed quote is reported by pandas.
    with open_table(path) as file, suppress(csv.Error):
        reader = csv.reader(file)
        for row in reader:
            if len(row) > columns:
                problems[reader.line_num] = f"has {len(row)} fields, but the header has {columns}"
    return problems


def _read_columns(path: Path, header: list[str], skipped_lines: Collection[int]) -> pd.DataFrame:
    """Return the required columns without `skipped_lines`; columns that are not all numbers are text."""
    # pandas refuses or renames repeated and empty names; only the required columns matter, and their names are unique.
    names = [name if name in (*REQUIRED, "symbol") else f"{name} in column {i}" for i, name in enumerate(header)]
    with open_table(path) as file:
        rows = pd.read_csv(
            file,
            header=0,
            names=names,
            skiprows=[line - 1 for line in skipped_lines],
            dtype={"time": "str", "symbol": "str"},
            # NA is a valid symbol; a missing number fails to parse later.
            keep_default_na=False,
            skipinitialspace=True,
            low_memory=False,
        )
    if "symbol" not in header:
        rows["symbol"] = "the only one"
    return rows[["symbol", *REQUIRED]]


def _parse(raw: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with NaN or NaT for values that cannot be parsed."""
    times = pd.to_datetime(raw["time"], format="ISO8601", utc=True, errors="coerce").dt.tz_localize(None)
    numbers = {name: _parse_numbers(raw[name]) for name in NUMBERS}
    return pd.DataFrame({"symbol": raw["symbol"], "time": times.astype("datetime64[us]"), **numbers})


def _parse_numbers(texts: "pd.Series[str]") -> "pd.Series[float]":
    try:
        return pd.to_numeric(texts, errors="coerce").astype("float64")
    except OverflowError:  # of an integer beyond the range of floats, which pandas does not coerce
        return pd.to_numeric(texts.where(texts.astype("str").str.len() < 300), errors="coerce").astype("float64")


def _find_problems(raw: pd.DataFrame, bars: pd.DataFrame) -> Iterator[Problem]:
    """Yield all kinds of problems that a row may have."""
    yield raw["symbol"] == "", lambda _: "symbol is empty"
    yield (
        bars["time"].isna(),
        lambda row: f"time {raw['time'][row]!r} is not a time; write 2024-01-31 or 2024-01-31 09:30",
    )
    previous = bars.groupby("symbol", observed=True)["time"].shift()
    yield (
        bars["time"] < previous,
        lambda row: f"time {bars['time'][row]} is before {previous[row]} in the row above ({raw['symbol'][row]})",
    )
    repeated = bars.duplicated(["symbol", "time"]) & bars["time"].notna()
    yield repeated, lambda row: f"time {bars['time'][row]} occurs twice ({raw['symbol'][row]})"
    for name in NUMBERS:
        yield from _find_number_problems(name, raw[name], bars[name])
    # If high is below low, at least one of these two problems exists.
    body = bars[["open", "close"]]
    yield (
        bars["high"] < body.max(axis=1, skipna=False),
        lambda row: f"high {bars['high'][row]:g} is below open or close",
    )
    yield (
        bars["low"] > body.min(axis=1, skipna=False),
        lambda row: f"low {bars['low'][row]:g} is above open or close",
    )


def _find_number_problems(name: str, text: "pd.Series[str]", values: "pd.Series[float]") -> Iterator[Problem]:
    yield ~pd.Series(np.isfinite(values)), lambda row: f"{name} {str(text[row])!r} is not a finite number"
    if name in PRICES:
        yield values <= 0, lambda row: f"{name} {values[row]:g} is not positive"
    else:
        yield values < 0, lambda row: f"{name} {values[row]:g} is negative"
