"""From a file of bars to the three parts that are trained, validated and tested on."""

from collections.abc import Mapping
from functools import lru_cache
from math import ceil
from pathlib import Path

import pandas as pd
import torch

from shoestring.errors import DataError
from shoestring.recipes.rows import OnBadRows, Rows
from shoestring.recipes.temporal.bars import SAMPLE, read_bars, sample_bars
from shoestring.recipes.temporal.features import LOOK_BACK
from shoestring.recipes.temporal.split import PARTS, borders, shares
from shoestring.recipes.temporal.table import standardised, tabulate
from shoestring.recipes.temporal.timeframes import choose
from shoestring.recipes.temporal.windows import Windows, classes, last_bars


def parts(
    path: Path | None,
    *,
    seq_len: int,
    horizon: int,
    threshold: float,
    fold: str | None,
    on_bad_rows: OnBadRows = "refuse",
) -> tuple[dict[str, Windows], tuple[str, ...]]:
    """The `PARTS` of the bars in the CSV file `path`, or of the sample bars, and what a person should know of them.
    Read once while the file stays as it is.

    Raises DataError for what is wrong with the file, and where a part is too short for a single sample.
    """
    file, version = None, (0, 0)
    if path is not None:
        file = Path(path).resolve()
        try:
            stat = file.stat()
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror}", hint="give a CSV file of bars") from error
        version = stat.st_mtime_ns, stat.st_size
    found, notes = _parts(file, version, seq_len, horizon, threshold, fold, on_bad_rows)
    return dict(found), notes


# One at a time: a large table should not stay behind when another is asked for.
@lru_cache(maxsize=1)
def _parts(
    file: Path | None,
    _version: tuple[int, int],
    seq_len: int,
    horizon: int,
    threshold: float,
    fold: str | None,
    on_bad_rows: OnBadRows,
) -> tuple[dict[str, Windows], tuple[str, ...]]:
    rows = Rows(on_bad_rows)
    bars = read_bars(file, rows) if file else sample_bars()
    table = tabulate(bars)
    where = dict(zip(PARTS, borders(table.moments, fold), strict=True))
    found = {part: last_bars(table, seq_len, horizon, *border) for part, border in where.items()}
    empty = [part for part in PARTS if not len(found[part])]
    if empty:
        raise _too_few(bars, str(file or "the sample data"), table.moments, empty, seq_len, horizon, fold)
    features = torch.from_numpy(standardised(table, before=where["train"][1])).contiguous()
    samples = {
        part: Windows(
            features,
            torch.from_numpy(last),
            torch.from_numpy(classes(table.close, last, horizon, threshold)),
            seq_len,
        )
        for part, last in found.items()
    }
    return samples, (_described(bars, file, samples), *rows.notes)


def _described(bars: pd.DataFrame, file: Path | None, samples: Mapping[str, Windows]) -> str:
    """What the data are, in a sentence."""
    said = f"{len(bars):,} bars" if file else f"{SAMPLE}, {len(bars):,} real daily bars"
    symbols = bars["symbol"].nunique()
    of = f" of {symbols:,} symbols" if symbols > 1 else ""
    counts = ", ".join(f"{part} {len(data):,}" for part, data in samples.items())
    return f"data: {said}{of} from {bars['time'].min():%Y-%m-%d} to {bars['time'].max():%Y-%m-%d}; samples: {counts}"


def _too_few(
    bars: pd.DataFrame, name: str, moments: int, empty: list[str], seq_len: int, horizon: int, fold: str | None
) -> DataError:
    base, of_middle, of_coarse = LOOK_BACK
    middle, coarse = choose(bars)
    span = seq_len + horizon
    return DataError(
        f"{name} has too few rows: {len(bars):,}, and {moments:,} bars in time after the warm-up",
        problems=[
            f"a bar counts from the {base}th on, after {of_middle} closed bars of {middle} and {of_coarse} of {coarse}",
            f"a sample takes {span} bars of one part: {seq_len} in its sequence and {horizon} to its label",
            f"without any sample: {', '.join(empty)}",
        ],
        hint=f"after the warm-up {ceil(span / min(shares(fold))):,} bars are needed; or lower seq_len or horizon",
    )
