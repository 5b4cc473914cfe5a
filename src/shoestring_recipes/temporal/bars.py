"""Reading OHLCV bars from a CSV file or a list, with validation that finds all problems of every row."""

import csv
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shoestring.base.errors import DataError, UsageError
from shoestring.base.reading import open_table
from shoestring_recipes.rows import MAX_LISTED, BadRows
from shoestring_recipes.temporal.layout import (
    CLOCK,
    NUMBERS,
    PRICES,
    REQUIRED,
    Layout,
    canonical_names,
    read_layout,
)
from shoestring_recipes.temporal.layout import ONLY_SYMBOL as ONLY_SYMBOL  # where this name was before

_DOTTED_DAY = re.compile(r"^(\d{4})\.(\d\d)\.(\d\d)")
"""A day as MetaTrader writes it."""
_EPOCH: Mapping[str, Literal["s", "ms"]] = {r"\d{9,10}(?:\.0)?": "s", r"\d{12,13}(?:\.0)?": "ms"}
"""Seconds and milliseconds since 1970, for times from 1973 on, with their units."""

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


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of a file or of a list, usable or not. A row's position counts from 0, without the header."""

    bars: pd.DataFrame
    """One row for each row that could be divided into columns, with NaN or NaT for values that cannot be parsed."""
    positions: NDArray[np.int64]
    """The position of each of `bars`."""
    problems: list[tuple[NDArray[np.bool_], Callable[[int], str]]]
    """For each kind of problem, which of `bars` have it, and its description for one of them."""
    unreadable: dict[int, str]
    """For the position of every other row, why it could not be divided into columns."""

    @property
    def count(self) -> int:
        return len(self.bars) + len(self.unreadable)

    @cached_property
    def usable(self) -> NDArray[np.bool_]:
        """Which of `bars` have no problem."""
        bad = np.zeros(len(self.bars), dtype=np.bool_)
        for mask, _ in self.problems:
            bad |= mask
        return ~bad

    @cached_property
    def bad_positions(self) -> list[int]:
        """The positions of all unusable rows."""
        return sorted([*self.unreadable, *self.positions[~self.usable].tolist()])

    def describe(self, position: int) -> str:
        """Return all problems of an unusable row."""
        if position in self.unreadable:
            return self.unreadable[position]
        row = int(np.searchsorted(self.positions, position))
        return "; ".join(describe(row) for mask, describe in self.problems if mask[row])

    def usable_bars(self) -> pd.DataFrame:
        """Return the usable bars, sorted by symbol, then time; the index is their position."""
        return _sort(self.bars[self.usable].set_axis(self.positions[self.usable]))


def read_bars(path: Path, bad_rows: BadRows) -> pd.DataFrame:
    """Return the bars of a CSV file: `symbol`, `time` (UTC, without zone), `open high low close volume` (float64).

    The file has a header with these names in any case and order, divided by commas, semicolons or tabs; `time` may be
    named date, datetime or timestamp, `symbol` may be absent, and other columns are ignored. Exports of MetaTrader are
    read as they are (`layout.py`), also without a header. Times are ISO 8601, or seconds or milliseconds since 1970;
    one with an offset is converted to UTC, one without is taken as UTC. The rows of each symbol ascend in time. The
    result is sorted by symbol, then time, and its index is the position of the row in the file.

    Unusable rows are reported to `rows`, each with all its problems and its line in the file (the header is line 1). If
    they are skipped, the bars before and after them become neighbours, as they are around a holiday.

    Raises DataError with all problems.
    """
    rows = read_rows(path)
    report_bad_rows(path, rows, bad_rows)
    bad_rows.finish(rows.count)
    return rows.usable_bars()


def report_bad_rows(path: Path, rows: Rows, bad_rows: BadRows) -> None:
    """Report the unusable rows of a file to `bad_rows`."""
    lines = _row_lines(path, read_layout(path)) if rows.bad_positions else []
    for number, position in enumerate(rows.bad_positions):
        # Only the first problems are displayed, so a file of a million bad rows is not described in full.
        line = lines[position] if position < len(lines) else None
        bad_rows.report(path, line, rows.describe(position) if number < MAX_LISTED else "")


def read_rows(path: Path, symbol: str = ONLY_SYMBOL) -> Rows:
    """Return the rows of a CSV file as `read_bars` describes it; `symbol` is theirs if there is no column for it.

    Raises DataError if it has no usable columns.
    """
    try:
        layout = read_layout(path, symbol)
        if column_problems := _find_column_problems(layout.names):
            named = ", ".join(layout.names) or "no columns"
            hint = f"the columns {', '.join(REQUIRED)} are required; this file has {named}"
            _raise_data_error(path, column_problems, hint=hint)
        raw, ragged_lines = _read_raw(path, layout)
        if raw.empty and not ragged_lines:
            _raise_data_error(path, ["there are no rows"])
        lines = _row_lines(path, layout) if ragged_lines else []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read: {error}", hint="use a CSV file in UTF-8") from error
    return _parse(raw, {bisect_left(lines, line): problem for line, problem in ragged_lines.items()})


def parse_rows(rows: Sequence[Any]) -> Rows:
    """Return rows that are mappings with the columns of a file."""
    columns: list[dict[str, Any]] = []
    unreadable = {}
    for position, row in enumerate(rows):
        if not isinstance(row, Mapping):
            unreadable[position] = f"is of type {type(row).__name__}, not an object with the keys {', '.join(REQUIRED)}"
            continue
        names = canonical_names(map(str, row))
        if problems := _find_column_problems(names):
            unreadable[position] = "; ".join(problems)
            continue
        values = dict(zip(names, row.values(), strict=True))
        if CLOCK in values:
            values["time"] = f"{values['time']} {values[CLOCK]}"
        columns.append(
            {name: str(values.get(name, ONLY_SYMBOL)) for name in ("symbol", "time")}
            | {name: value if type(value := values[name]) in (int, float) else str(value) for name in NUMBERS}
        )
    return _parse(pd.DataFrame(columns, columns=["symbol", *REQUIRED], dtype="object"), unreadable)


def concatenate_rows(pieces: Sequence[tuple[str, Rows]]) -> Rows:
    """Return the rows of several files, with their names, as those of one; problems begin with the name of the file."""
    first_row = first_position = 0
    row_count = sum(len(rows.bars) for _, rows in pieces)
    positions: list[NDArray[np.int64]] = []
    problems: list[tuple[NDArray[np.bool_], Callable[[int], str]]] = []
    unreadable: dict[int, str] = {}
    for name, rows in pieces:
        positions.append(rows.positions + first_position)
        for mask, describe in rows.problems:
            padded = np.zeros(row_count, dtype=np.bool_)
            padded[first_row : first_row + len(mask)] = mask
            problems.append((padded, partial(_describe_in_file, name, describe, first_row)))
        unreadable |= {first_position + position: f"{name}: {text}" for position, text in rows.unreadable.items()}
        first_row, first_position = first_row + len(rows.bars), first_position + rows.count
    bars = pd.concat([rows.bars for _, rows in pieces], ignore_index=True)
    return Rows(bars=bars, positions=np.concatenate(positions), problems=problems, unreadable=unreadable)


def _describe_in_file(name: str, describe: Callable[[int], str], first_row: int, row: int) -> str:
    return f"{name}: {describe(row - first_row)}"


def _find_column_problems(header: Sequence[str]) -> list[str]:
    return [
        *(f"there is no column {name}" for name in REQUIRED if name not in header),
        *(f"{name}: more than one column has this name" for name in ("symbol", *REQUIRED) if header.count(name) > 1),
    ]


def _row_lines(path: Path, layout: Layout) -> list[int]:
    """Return the line of each row; it differs from the row's position because pandas skips blank lines."""
    with open_table(path) as file:
        return [number for number, line in enumerate(file, start=1) if line.strip()][layout.has_header :]


def _raise_data_error(path: Path, problems: list[str], *, hint: str | None = None) -> NoReturn:
    count = len(problems)
    raise DataError(f"{path} has {count:,} {'problem' if count == 1 else 'problems'}", problems=problems, hint=hint)


def _sort(bars: pd.DataFrame) -> pd.DataFrame:
    # Categories are sorted by their codes, which is fast for a million rows; codes are in alphabetical order.
    return bars.astype({"symbol": "category"}).sort_values(["symbol", "time"])


def _read_raw(path: Path, layout: Layout) -> tuple[pd.DataFrame, dict[int, str]]:
    """Return the required columns unparsed, and a problem for each line with more fields than the header."""
    # If every row has one field too many, pandas silently uses the first as the index.
    with suppress(pd.errors.ParserError):
        rows = _read_columns(path, layout, ())
        if isinstance(rows.index, pd.RangeIndex):
            return rows, {}
    ragged_lines = _find_ragged_lines(path, layout)
    try:
        return _read_columns(path, layout, ragged_lines), ragged_lines
    except pd.errors.ParserError as error:
        hint = "write numbers without thousands separators, and close every quote"
        _raise_data_error(path, [str(error).strip()], hint=hint)


def _find_ragged_lines(path: Path, layout: Layout) -> dict[int, str]:
    """Return a problem for each line with more fields than the header; pandas would report the first alone."""
    problems, columns = {}, len(layout.names)
    first = "the header" if layout.has_header else "the first row"
    # An unclosed quote is reported by pandas.
    with open_table(path) as file, suppress(csv.Error):
        reader = csv.reader(file, delimiter=layout.delimiter)
        for row in reader:
            if len(row) > columns:
                problems[reader.line_num] = f"has {len(row)} fields, but {first} has {columns}"
    return problems


def _read_columns(path: Path, layout: Layout, skipped_lines: Collection[int]) -> pd.DataFrame:
    """Return the required columns without `skipped_lines`; columns that are not all numbers are text."""
    # pandas refuses or renames repeated and empty names; only the required columns matter, and their names are unique.
    used = (*REQUIRED, "symbol", CLOCK)
    names = [name if name in used else f"{name} in column {i}" for i, name in enumerate(layout.names)]
    with open_table(path) as file:
        rows = pd.read_csv(
            file,
            sep=layout.delimiter,
            header=0 if layout.has_header else None,
            names=names,
            skiprows=[line - 1 for line in skipped_lines],
            dtype={"time": "str", "symbol": "str", CLOCK: "str"},
            # NA is a valid symbol; a missing number fails to parse later.
            keep_default_na=False,
            skipinitialspace=True,
            low_memory=False,
        )
    if CLOCK in layout.names:
        rows["time"] = rows["time"] + " " + rows[CLOCK]
    if "symbol" not in layout.names:
        rows["symbol"] = layout.symbol
    return rows[["symbol", *REQUIRED]]


def _parse(raw: pd.DataFrame, unreadable: dict[int, str]) -> Rows:
    times = _parse_times(raw["time"])
    numbers = {name: _parse_numbers(raw[name]) for name in NUMBERS}
    bars = pd.DataFrame({"symbol": raw["symbol"], "time": times.astype("datetime64[us]"), **numbers})
    problems = [(mask.to_numpy(), describe) for mask, describe in _find_problems(raw, bars) if mask.any()]
    # Every position that is not unreadable is a row of `raw`; lines within quotes may have made the last ones larger.
    readable = np.setdiff1d(np.arange(len(raw) + max(unreadable, default=0) + 1), [*unreadable])
    return Rows(bars=bars, positions=readable[: len(raw)], problems=problems, unreadable=unreadable)


def _parse_times(texts: "pd.Series[str]") -> "pd.Series[pd.Timestamp]":
    """Return times in UTC, without zone; NaT for what is none."""
    iso = texts.str.replace(_DOTTED_DAY, r"\1-\2-\3", regex=True)
    times = pd.to_datetime(iso, format="ISO8601", utc=True, errors="coerce")
    for digits, unit in _EPOCH.items():
        if (chosen := texts.str.fullmatch(digits, na=False)).any():
            numbers = pd.to_numeric(texts[chosen])
            times[chosen] = pd.to_datetime(numbers, unit=unit, utc=True)
    return times.dt.tz_localize(None)


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
