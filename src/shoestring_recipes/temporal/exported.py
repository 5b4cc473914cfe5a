"""MetaTrader 5's names of files with bars: `SYMBOL_TIMEFRAME.csv` or `SYMBOL_TIMEFRAME_FROM_TO.csv`."""

import re
from dataclasses import dataclass
from pathlib import Path

from shoestring.base.errors import DataError
from shoestring_recipes.temporal.timeframes import PERIODS, shortest_seconds

TIMEFRAMES = {
    **{f"M{count}": f"{count} minutes" for count in (2, 3, 4, 5, 6, 10, 12, 15, 20, 30)},
    **{f"H{count}": f"{count} hours" for count in (2, 3, 4, 6, 8, 12)},
    "M1": "1 minute",
    "H1": "1 hour",
    "D1": "1 day",
    "W1": "1 week",
    "MN1": "1 month",
}
"""MetaTrader's timeframes, with their names in `PERIODS`. Source: ENUM_TIMEFRAMES of MQL5's reference."""

_WORDS = {"DAILY": "D1", "WEEKLY": "W1", "MONTHLY": "MN1"}
"""The names that the terminal's export writes instead of the last three."""

_NAME = re.compile(
    rf"(?P<symbol>.+)_(?P<timeframe>{'|'.join([*TIMEFRAMES, *_WORDS])})(_\d{{8,14}}_\d{{8,14}})?", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True)
class ExportedFile:
    """A file with bars of one symbol in one timeframe, as its name says."""

    path: Path
    symbol: str
    timeframe: str
    """One of `TIMEFRAMES`."""


def seconds(timeframe: str) -> int:
    """Return the length of one of `TIMEFRAMES`, of a month that of the shortest."""
    return shortest_seconds(TIMEFRAMES[timeframe])


def name_of(period: str) -> str:
    """Return MetaTrader's name of one of `PERIODS`, or the period if it has none."""
    return next((timeframe for timeframe, name in TIMEFRAMES.items() if name == period), period)


def next_longer(timeframe: str) -> float:
    """Return the length of the next of `PERIODS` in seconds; infinity after the last."""
    return min(
        (length for length in map(shortest_seconds, PERIODS) if length > seconds(timeframe)), default=float("inf")
    )


def find_files(folder: Path) -> list[ExportedFile]:
    """Return the CSV files of a folder, sorted by name. Hidden ones, other files and subfolders are left out.

    Raises DataError if there are none, or with all names that are not MetaTrader's.
    """
    try:
        paths = sorted(
            path
            for path in folder.iterdir()
            if path.suffix.lower() == ".csv" and not path.name.startswith(".") and not path.is_dir()
        )
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}", hint="use a folder that you may read") from error
    hint = "name each file SYMBOL_TIMEFRAME.csv as MetaTrader does, for example EURUSD_M15.csv or EURUSD_H4.csv"
    if not paths:
        raise DataError(f"{folder} has no CSV files", hint=hint)
    files, problems = [], []
    for path in paths:
        match = _NAME.fullmatch(path.stem)
        if match is None:
            problems.append(f"{path.name}: symbol and timeframe are not in its name")
            continue
        timeframe = match["timeframe"].upper()
        files.append(ExportedFile(path=path, symbol=match["symbol"], timeframe=_WORDS.get(timeframe, timeframe)))
    if problems:
        raise DataError(f"{folder} has files of unknown content", problems=problems, hint=f"{hint}, or move it away")
    return files
