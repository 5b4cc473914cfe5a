"""Bars of several symbols and timeframes, from a folder of files that are named as MetaTrader 5 names its exports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import pandas as pd

from shoestring.base.errors import DataError, UsageError
from shoestring.base.units import plural
from shoestring_recipes.rows import BadRows
from shoestring_recipes.temporal.agreement import find_disagreements, find_gaps
from shoestring_recipes.temporal.bars import Rows, concatenate_rows, read_rows, report_bad_rows
from shoestring_recipes.temporal.exported import TIMEFRAMES, ExportedFile, find_files, name_of, next_longer, seconds
from shoestring_recipes.temporal.timeframes import PERIODS, timeframes_for

_SHORTEST = 0.9
"""Least distance of two bars in lengths of their timeframe: a day has 23 hours when the clocks change."""


@dataclass(frozen=True, kw_only=True)
class Folder:
    """The bars of a folder."""

    rows: Rows
    """Those of the base timeframe, file after file: by symbol, then by time."""
    coarser_bars: Mapping[str, Mapping[str, pd.DataFrame]]
    """Those of longer timeframes by symbol and period."""
    timeframes: tuple[str, str]
    """The middle and the coarse one."""
    notes: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """A file with its rows, and its usable bars, which ascend in time."""

    file: ExportedFile
    rows: Rows
    bars: pd.DataFrame


_Series: TypeAlias = Mapping[tuple[str, str], Sequence[_Piece]]
"""The files by symbol and timeframe, each ascending in time."""


def read_folder(
    folder: Path,
    bad_rows: BadRows,
    *,
    timeframe: str | None = None,
    timeframes: tuple[str, str] | None = None,
    reports_base: bool = True,
) -> Folder:
    """Read the bars of a folder.

    `timeframe` is MetaTrader's name of the base one, by default the shortest in the folder. `timeframes` are the middle
    and the coarse one, by default those of `choose_longer`. A symbol without files of one of them has it aggregated
    from its bars. Unusable rows are reported to `bad_rows`, those of the base timeframe only with `reports_base`.

    Raises DataError with all problems of a kind: names, then rows, then files that do not fit together.
    """
    files = find_files(folder)
    base = timeframe or min((file.timeframe for file in files), key=seconds)
    _require_base(folder, files, base)
    longer = sorted({file.timeframe for file in files if seconds(file.timeframe) > seconds(base)}, key=seconds)
    pair = timeframes or choose_longer(base, longer)
    used = [name for name in longer if TIMEFRAMES[name] in pair]
    series = _read(folder, [file for file in files if file.timeframe in (base, *used)], bad_rows, base, reports_base)
    if problems := [problem for pieces in series.values() for problem in _find_problems(pieces)]:
        hint = "export the files again, or correct their names"
        raise DataError(f"{folder} has files that cannot be used", problems=problems, hint=hint)
    bars = {key: pd.concat([piece.bars for piece in pieces]) for key, pieces in series.items()}
    notes = [
        *_describe(series, base, pair, sorted({file.timeframe for file in files} - {base, *used}, key=seconds)),
        *(
            note
            for (symbol, name), frame in bars.items()
            for note in find_gaps(f"{symbol} {name}", frame, seconds(name))
        ),
        *_compare(folder, bars, base),
    ]
    coarser_bars: dict[str, dict[str, pd.DataFrame]] = defaultdict(dict)
    for (symbol, name), frame in bars.items():
        if name != base:
            coarser_bars[symbol][TIMEFRAMES[name]] = frame
    base_pieces = [piece for (_, name), pieces in series.items() if name == base for piece in pieces]
    rows = concatenate_rows([(piece.file.path.name, piece.rows) for piece in base_pieces])
    return Folder(rows=rows, coarser_bars=coarser_bars, timeframes=pair, notes=notes)


def require_folder(timeframe: str | None) -> None:
    """Raise UsageError if a base timeframe is chosen for bars that are not in a folder."""
    if timeframe is not None:
        raise UsageError(
            f"timeframe={timeframe}: only a folder has bars of several timeframes to choose from",
            hint="set data to a folder of files such as EURUSD_M15.csv, or leave timeframe out",
        )


def choose_longer(base: str, longer: Sequence[str]) -> tuple[str, str]:
    """Return the middle and the coarse timeframe for bars of `base`, where there are files of the `longer` ones.

    Those for the spacing of the bars come first (H1 and H4 for M15), then the shortest of the others; one that has no
    files is aggregated from the bars.
    """
    usual = timeframes_for(seconds(base))
    periods = [TIMEFRAMES[name] for name in longer]
    chosen = sorted(periods, key=lambda period: period not in usual)[:2]
    chosen += [period for period in reversed(usual) if period not in chosen][: 2 - len(chosen)]
    middle, coarse = sorted(chosen, key=[*PERIODS].index)
    return middle, coarse


def _require_base(folder: Path, files: Sequence[ExportedFile], base: str) -> None:
    """Raise DataError if a symbol has no files of the base timeframe."""
    by_symbol: dict[str, set[str]] = defaultdict(set)
    for file in files:
        by_symbol[file.symbol].add(file.timeframe)
    missing = {symbol: sorted(names, key=seconds) for symbol, names in by_symbol.items() if base not in names}
    if missing:
        common = sorted(set.intersection(*by_symbol.values()), key=seconds)
        advice = f", or choose one that all have: --set timeframe={common[0]}" if common else ""
        raise DataError(
            f"{folder} has no {base} files of {plural(len(missing), 'symbol')}",
            problems=[f"{symbol} has {', '.join(names)}" for symbol, names in missing.items()],
            hint=f"add them, or move the other files of these symbols away{advice}",
        )


def _read(folder: Path, files: Sequence[ExportedFile], bad_rows: BadRows, base: str, reports_base: bool) -> _Series:
    problems, row_count = [], 0
    series: dict[tuple[str, str], list[_Piece]] = defaultdict(list)
    for file in sorted(files, key=lambda file: (file.symbol, seconds(file.timeframe))):
        try:
            rows = read_rows(file.path, file.symbol)
        except DataError as error:
            problems += [f"{file.path.name}: {problem}" for problem in error.problems] or [error.message]
            continue
        if file.timeframe != base or reports_base:
            row_count += rows.count
            report_bad_rows(file.path, rows, bad_rows)
        bars = rows.usable_bars()
        series[file.symbol, file.timeframe].append(_Piece(file=file, rows=rows, bars=bars))
    if problems:
        raise DataError(f"{folder} has files that cannot be read", problems=problems, hint="use CSV files of bars")
    bad_rows.finish(row_count)
    for pieces in series.values():
        pieces.sort(key=lambda piece: piece.bars["time"].min())
    return series


def _find_problems(pieces: Sequence[_Piece]) -> Iterator[str]:
    """Yield what is wrong with the files of one symbol and timeframe."""
    for piece in pieces:
        name, file = piece.file.path.name, piece.file
        symbols = sorted({*piece.bars["symbol"].unique()} - {file.symbol})
        if symbols:
            yield f"{name}: its column symbol has {symbols[0][:40]!r}"
        if len(piece.bars) < 2:
            yield f"{name}: has {plural(len(piece.bars), 'usable bar')}, too few to see that they are {file.timeframe}"
            continue
        gaps = piece.bars["time"].diff().dt.total_seconds()
        length = seconds(file.timeframe)
        is_longer = gaps.median() >= _SHORTEST * next_longer(file.timeframe)
        too_close = int((gaps < _SHORTEST * length).sum())
        if is_longer or too_close > len(piece.bars) / 2:
            distance, expected = gaps.median() / 60, length / 60
            yield f"{name}: most of its bars open {distance:g} minutes after the one before, not {expected:g}"
        elif too_close:
            count = plural(too_close, "of its bars opens", "of its bars open")
            yield f"{name}: {count} less than {length / 60:g} minutes after the one before"
    for piece, following in pairwise(pieces):
        first, last = following.bars["time"].min(), piece.bars["time"].max()
        if first <= last:
            yield (
                f"{piece.file.path.name} and {following.file.path.name}: both have the time from {first} to "
                f"{min(last, following.bars['time'].max())}; remove one, or export periods that do not overlap"
            )


def _describe(series: _Series, base: str, pair: tuple[str, str], unused: Sequence[str]) -> Iterator[str]:
    """Yield sentences on which files are used for what."""
    symbols = sorted({symbol for symbol, _ in series})
    names = [name_of(period) for period in pair]
    yield f"timeframes: {base}, with {names[0]} and {names[1]}; files of {plural(len(symbols), 'symbol')}"
    for name in names:
        missing = [symbol for symbol in symbols if (symbol, name) not in series]
        if missing:
            suffix = "" if len(missing) == len(symbols) else f" of {', '.join(missing)}"
            yield f"there are no {name} files{suffix}: these bars are aggregated from {base}"
    if unused:
        yield f"files of {', '.join(unused)} are not used: the features have two timeframes beside {base}"


def _compare(folder: Path, bars: Mapping[tuple[str, str], pd.DataFrame], base: str) -> list[str]:
    """Return notes on the bars of longer timeframes. Raises DataError for those that cannot be used."""
    findings = [
        finding
        for (symbol, name), longer in bars.items()
        if name != base
        for finding in find_disagreements(f"{symbol} {name}", base, bars[symbol, base], longer, TIMEFRAMES[name])
    ]
    if problems := [text for is_wrong, text in findings if is_wrong]:
        hint = "export all timeframes of a symbol from the same terminal, for the same time"
        raise DataError(f"{folder} has timeframes that do not fit together", problems=problems, hint=hint)
    return [text for _, text in findings]
