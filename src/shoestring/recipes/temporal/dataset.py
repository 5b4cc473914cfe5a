"""Loading bars as datasets for training, validation and test."""

from collections.abc import Mapping
from functools import lru_cache
from math import ceil
from pathlib import Path

import pandas as pd
import torch

from shoestring.errors import DataError
from shoestring.recipes.rows import BadRows, OnBadRows
from shoestring.recipes.temporal.bars import SAMPLE, load_sample_bars, read_bars
from shoestring.recipes.temporal.features import LOOK_BACK
from shoestring.recipes.temporal.split import PARTS, borders, shares
from shoestring.recipes.temporal.table import standardise, tabulate
from shoestring.recipes.temporal.timeframes import choose_timeframes
from shoestring.recipes.temporal.windows import Windows, classify, last_bars


def load_parts(
    path: Path | None,
    *,
    seq_len: int,
    horizon: int,
    threshold: float,
    fold: str | None,
    on_bad_rows: OnBadRows = "refuse",
) -> tuple[dict[str, Windows], tuple[str, ...]]:
    """Return the `PARTS` of the bars in the CSV file `path`, or of the sample bars, and notes about them for the user.

    The result is cached until the file changes.

    Raises DataError for problems of the file, and if a part is too short for a single sample.
    """
    file, version = None, (0, 0)
    if path is not None:
        file = Path(path).resolve()
        try:
            stat = file.stat()
        except OSError as error:
            raise DataError(
                f"{file} cannot be read: {error.strerror}",
                hint="if the file has moved, pass its new path: --set data=PATH",
            ) from error
        version = stat.st_mtime_ns, stat.st_size
    datasets, notes = _load_cached(file, version, seq_len, horizon, threshold, fold, on_bad_rows)
    return dict(datasets), notes


# The cache has one entry, so that a large table is freed when another one is loaded.
@lru_cache(maxsize=1)
def _load_cached(
    file: Path | None,
    _version: tuple[int, int],
    seq_len: int,
    horizon: int,
    threshold: float,
    fold: str | None,
    on_bad_rows: OnBadRows,
) -> tuple[dict[str, Windows], tuple[str, ...]]:
    bad_rows = BadRows(on_bad_rows)
    bars = read_bars(file, bad_rows) if file else load_sample_bars()
    table = tabulate(bars)
    ranges = dict(zip(PARTS, borders(table.moments, fold), strict=True))
    ends_by_part = {part: last_bars(table, seq_len, horizon, *limits) for part, limits in ranges.items()}
    empty_parts = [part for part in PARTS if not len(ends_by_part[part])]
    if empty_parts:
        raise _too_few_bars(bars, str(file or "the sample data"), table.moments, empty_parts, seq_len, horizon, fold)
    symbols, bar_times = bars["symbol"].cat.categories, pd.DatetimeIndex([] if table.time is None else table.time)
    features = torch.from_numpy(standardise(table, before=ranges["train"][1])).contiguous()
    samples = {
        part: Windows(
            features,
            torch.from_numpy(ends),
            torch.from_numpy(classify(table.close, ends, horizon, threshold)),
            seq_len,
        )
        for part, ends in ends_by_part.items()
    }
    for windows in samples.values():
        windows.last_bar = lambda row: (f"{bar_times[row]:%Y-%m-%d %H:%M:%S}", str(symbols[table.symbol[row]]))
    return samples, (_describe(bars, file, samples), *bad_rows.notes)


def _describe(bars: pd.DataFrame, file: Path | None, samples: Mapping[str, Windows]) -> str:
    """Return a sentence that describes the data."""
    source = f"{len(bars):,} bars" if file else f"{SAMPLE}, {len(bars):,} real daily bars"
    symbols = bars["symbol"].nunique()
    symbols_text = f" of {symbols:,} symbols" if symbols > 1 else ""
    counts = ", ".join(f"{part} {len(data):,}" for part, data in samples.items())
    first, last = bars["time"].min(), bars["time"].max()
    return f"data: {source}{symbols_text} from {first:%Y-%m-%d} to {last:%Y-%m-%d}; samples: {counts}"


def _too_few_bars(
    bars: pd.DataFrame, name: str, moments: int, empty_parts: list[str], seq_len: int, horizon: int, fold: str | None
) -> DataError:
    base_count, middle_count, coarse_count = LOOK_BACK
    middle, coarse = choose_timeframes(bars)
    span = seq_len + horizon
    return DataError(
        f"{name} has too few rows: {len(bars):,}, with {moments:,} points in time after the warm-up",
        problems=[
            f"the warm-up ends with the {base_count}th bar and after {middle_count} closed bars of {middle} and "
            f"{coarse_count} of {coarse}",
            f"a sample needs {span} bars of one part: {seq_len} in its sequence and {horizon} up to its label",
            f"parts without any sample: {', '.join(empty_parts)}",
        ],
        hint=f"provide {ceil(span / min(shares(fold))):,} bars after the warm-up, or lower seq_len or horizon",
    )
