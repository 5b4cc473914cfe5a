"""Loading bars as datasets for training, validation and test, or as one dataset."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil, isfinite
from pathlib import Path

import pandas as pd
import torch

from shoestring.base.errors import DataError
from shoestring.base.reading import real_path
from shoestring_recipes.one_class import one_class_notes
from shoestring_recipes.rows import BadRows, OnBadRows
from shoestring_recipes.temporal.bars import SAMPLE, load_sample_bars, read_bars
from shoestring_recipes.temporal.exported import find_files
from shoestring_recipes.temporal.features import LOOK_BACK
from shoestring_recipes.temporal.folder import read_folder, require_folder
from shoestring_recipes.temporal.preprocessing import Preprocessing, fit, standardize
from shoestring_recipes.temporal.split import PARTS, borders, shares
from shoestring_recipes.temporal.table import tabulate
from shoestring_recipes.temporal.timeframes import choose_timeframes, median_spacing
from shoestring_recipes.temporal.windows import CLASSES, Windows, classify, last_bars


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How samples are cut from bars; the fields are options of the recipe."""

    seq_len: int
    horizon: int
    threshold: float
    fold: str | None
    on_bad_rows: OnBadRows = "refuse"
    preprocessing: Preprocessing | None = None
    """That of other data, which the model was trained on; None: fitted on the training part of these."""
    timeframe: str | None = None
    """The base timeframe of a folder."""


def load_bars(path: Path | None, sampling: Sampling) -> "LabeledBars":
    """Return the bars in the CSV file or folder `path`, or the sample bars.

    The result is cached until a file changes.

    Raises DataError for problems of the files.
    """
    file: Path | None = None
    version: tuple[tuple[str, int, int], ...] = ()
    if path is not None:
        file = real_path(Path(path))
        try:
            files = [exported.path for exported in find_files(file)] if file.is_dir() else [file]
            version = tuple((path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in files)
        except OSError as error:
            raise DataError(
                f"{file} cannot be read: {error.strerror}",
                hint="if the file has moved, pass its new path: --set data=PATH",
            ) from error
    return _load_cached(file, version, sampling)


# The cache has one entry, so that a large table is freed when another one is loaded.
@lru_cache(maxsize=1)
def _load_cached(file: Path | None, _version: tuple[tuple[str, int, int], ...], sampling: Sampling) -> "LabeledBars":
    return LabeledBars(file, sampling)


class LabeledBars:
    """Bars with their features and labels, cut into samples."""

    def __init__(self, file: Path | None, sampling: Sampling) -> None:
        self._file, self._sampling = file, sampling
        bad_rows = BadRows(sampling.on_bad_rows)
        trained = sampling.preprocessing
        coarser_bars: Mapping[str, Mapping[str, pd.DataFrame]] | None = None
        folder_notes: Sequence[str] = ()
        if file and file.is_dir():
            timeframes = trained.timeframes if trained else None
            folder = read_folder(file, bad_rows, timeframe=sampling.timeframe, timeframes=timeframes)
            self._bars, self._timeframes = folder.rows.usable_bars(), folder.timeframes
            coarser_bars, folder_notes = folder.coarser_bars, folder.notes
        else:
            require_folder(sampling.timeframe)
            self._bars = read_bars(file, bad_rows) if file else load_sample_bars()
            self._timeframes = trained.timeframes if trained else choose_timeframes(self._bars)
        self._notes = [*folder_notes, *bad_rows.notes]
        self._table = tabulate(self._bars, self._timeframes, coarser_bars)
        self._borders = dict(zip(PARTS, borders(self._table.moments, sampling.fold), strict=True))

    @property
    def parts(self) -> dict[str, Windows]:
        """The datasets of the `PARTS`. Raises DataError if one of them is too short for a single sample."""
        return dict(self._parts)

    @cached_property
    def _parts(self) -> dict[str, Windows]:
        return self._cut(self._borders)

    @cached_property
    def whole(self) -> Windows:
        """All samples of the file, also those across the borders of parts. Raises DataError if there are none."""
        return self._cut({"all": (0, self._table.moments)})["all"]

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """What was fitted on the training part of this file, or of the file that the model was trained on."""
        trained = self._sampling.preprocessing
        if trained is None and not self._borders["train"][1]:
            raise self._too_few_bars(["train"])
        spacing = median_spacing(self._bars)
        return trained or fit(
            self._table, self._timeframes, self._borders["train"][1], spacing if isfinite(spacing) else None
        )

    def notes(self, samples: Mapping[str, Windows]) -> list[str]:
        """Return sentences about the data, of which `samples` are used, and about skipped rows."""
        bars = self._bars
        source = f"{len(bars):,} bars" if self._file else f"{SAMPLE}, {len(bars):,} real daily bars"
        symbols = bars["symbol"].nunique()
        symbols_text = f" of {symbols:,} symbols" if symbols > 1 else ""
        counts = ", ".join(f"{part} {len(data):,}" for part, data in samples.items())
        first, last = bars["time"].min(), bars["time"].max()
        description = f"data: {source}{symbols_text} from {first:%Y-%m-%d} to {last:%Y-%m-%d}; samples: {counts}"
        classes = {part: [CLASSES[label] for label in data.labels.unique().tolist()] for part, data in samples.items()}
        return [description, *self._notes, *self._spacing_notes(), *one_class_notes(classes, "samples")]

    def _spacing_notes(self) -> list[str]:
        """Return a warning if the bars have another spacing than those that the model was trained on."""
        trained = self._sampling.preprocessing
        if trained is None or trained.suits(median_spacing(self._bars)):
            return []
        return [
            f"the model was trained with the timeframes {' and '.join(self._timeframes)}, but the spacing of these "
            f"bars is one for {' and '.join(choose_timeframes(self._bars))}: do not rely on its metrics"
        ]

    def _cut(self, moments_by_part: Mapping[str, tuple[int, int]]) -> dict[str, Windows]:
        """Return the samples between two moments, by part."""
        table, seq_len, horizon = self._table, self._sampling.seq_len, self._sampling.horizon
        ends_by_part = {part: last_bars(table, seq_len, horizon, *limits) for part, limits in moments_by_part.items()}
        if empty_parts := [part for part, ends in ends_by_part.items() if not len(ends)]:
            raise self._too_few_bars(empty_parts)
        parts = {
            part: Windows(
                self._features,
                torch.from_numpy(ends),
                torch.from_numpy(classify(table.close, ends, horizon, self._sampling.threshold)),
                seq_len,
                table.position,
            )
            for part, ends in ends_by_part.items()
        }
        for windows in parts.values():
            windows.describe_bar = self._describe_bar
        return parts

    def _describe_bar(self, row: int) -> dict[str, str]:
        """Return the time and the symbol of a row of the table."""
        bar = self._bars.iloc[int(self._table.row[row])]
        return {"time": f"{bar['time']:%Y-%m-%d %H:%M:%S}", "symbol": str(bar["symbol"])}

    @cached_property
    def _features(self) -> torch.Tensor:
        return torch.from_numpy(standardize(self._table, self.preprocessing)).contiguous()

    def _too_few_bars(self, empty_parts: list[str]) -> DataError:
        base_count, middle_count, coarse_count = LOOK_BACK
        middle, coarse = self._timeframes
        seq_len, horizon = self._sampling.seq_len, self._sampling.horizon
        span = seq_len + horizon
        required = span if empty_parts == ["all"] else ceil(span / min(shares(self._sampling.fold)))
        return DataError(
            f"{self._file or 'the sample data'} has too few rows: {len(self._bars):,}, with {self._table.moments:,} "
            "points in time after the warm-up",
            problems=[
                f"the warm-up ends with the {base_count}th bar and after {middle_count} closed bars of {middle} and "
                f"{coarse_count} of {coarse}",
                f"a sample needs {span} bars of one part: {seq_len} in its sequence and {horizon} up to its label",
                f"parts without any sample: {', '.join(empty_parts)}",
            ],
            hint=f"provide {required:,} bars after the warm-up, or lower seq_len or horizon",
        )
