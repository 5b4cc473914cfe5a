"""The bars that are predicted: every bar with a full history, in the order of its file; nothing of its future is read.

An unusable row is an input with an error. As in training with skipped rows, the bars before and after it become
neighbours, so the features of later bars are those of a file without that row. How many unusable rows lie within the
history of a bar is part of its input, because the prediction may depend on what was written there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoestring.base.errors import DataError
from shoestring.recipe.inputs import Input
from shoestring_recipes.rows import BadRows, OnBadRows
from shoestring_recipes.temporal.bars import ONLY_SYMBOL, Rows, load_sample_bars, parse_rows, read_rows
from shoestring_recipes.temporal.folder import read_folder, require_folder
from shoestring_recipes.temporal.preprocessing import Preprocessing, standardize
from shoestring_recipes.temporal.table import tabulate
from shoestring_recipes.temporal.timeframes import choose_timeframes, median_spacing
from shoestring_recipes.temporal.windows import last_bars

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Source:
    """What is to be predicted."""

    rows: Rows
    coarser_bars: Mapping[str, Mapping[str, pd.DataFrame]] | None = None
    """Bars of longer timeframes by symbol and period, where they are not to be aggregated."""
    notes: Sequence[str] = ()


def read_source(
    source: Path | Sequence[Any] | None, timeframes: tuple[str, str], *, timeframe: str | None, on_bad_rows: OnBadRows
) -> Source:
    """Return the rows of a CSV file, of a folder, of a list of mappings, or of the sample bars.

    `timeframes` are the middle and the coarse one; `timeframe` is the base one of a folder. Its unusable rows of longer
    timeframes are no inputs, so they are refused or skipped.
    """
    if isinstance(source, str | Path) and Path(source).is_dir():
        bad_rows = BadRows(on_bad_rows)
        folder = read_folder(Path(source), bad_rows, timeframe=timeframe, timeframes=timeframes, reports_base=False)
        return Source(rows=folder.rows, coarser_bars=folder.coarser_bars, notes=[*folder.notes, *bad_rows.notes])
    require_folder(timeframe)
    if source is None:
        bars = load_sample_bars().astype({"symbol": "str"})
        return Source(rows=Rows(bars=bars, positions=np.arange(len(bars)), problems=[], unreadable={}))
    return Source(rows=read_rows(Path(source)) if isinstance(source, str | Path) else parse_rows(source))


class BarInputs:
    """The inputs of a file, with one error for each unusable row."""

    def __init__(
        self, source: Source, preprocessing: Preprocessing, seq_len: int, *, bars: Literal["all", "latest"], skip: bool
    ) -> None:
        """`skip` leaves unusable rows out; `bars="latest"` selects the last bar of each symbol.

        Raises DataError if all rows are usable and no bar has a full history.
        """
        rows = source.rows
        self._rows, self._preprocessing, self._seq_len, self._source = rows, preprocessing, seq_len, source
        self._bars = rows.usable_bars()
        self._table = tabulate(self._bars, preprocessing.timeframes, source.coarser_bars)
        self._features = torch.from_numpy(standardize(self._table, preprocessing))
        ends = last_bars(self._table, seq_len, 0, 0, self._table.moments)
        self._ends = dict(zip(self._table.position[ends].tolist(), ends.tolist(), strict=True))
        if rows.count and not self._ends and not rows.bad_positions:
            raise self._too_few_bars()
        bad_positions = [] if skip else rows.bad_positions
        if bars == "latest":
            self._positions = self._latest_positions(bad_positions)
        else:
            self._positions = sorted([*self._ends, *bad_positions])

    def __len__(self) -> int:
        return len(self._positions)

    def __iter__(self) -> Iterator[Input]:
        for position in self._positions:
            end = self._ends.get(position)
            if end is not None:
                yield Input(id=position, value=self._describe(position), load=partial(self._cut, end))
            elif position in self._bad_positions:
                yield Input(id=position, value=self._describe(position), error=self._rows.describe(position))
            else:
                yield Input(
                    id=position,
                    value=self._describe(position),
                    error=f"has too few bars before it: {self._seq_len} are needed after the warm-up",
                )

    def notes(self) -> list[str]:
        """Return sentences about the number of predictions, unusable rows, and bars of another spacing."""
        usable, bad = len(self._bars), len(self._rows.bad_positions)
        notes = [f"data: {self._rows.count:,} bars, of which {len(self._ends):,} have a full history"]
        notes += self._source.notes
        if bad:
            notes.append(
                f"{bad:,} of {usable + bad:,} rows cannot be used; the bars before and after them become neighbours, "
                "and unusable_rows counts those in the history of a bar"
            )
        if self._ends and not self._preprocessing.suits(median_spacing(self._bars)):
            timeframes = choose_timeframes(self._bars)
            notes.append(
                f"the model was trained with the timeframes {' and '.join(self._preprocessing.timeframes)}, but the "
                f"spacing of these bars is one for {' and '.join(timeframes)}: do not rely on its predictions"
            )
        return notes

    @cached_property
    def _bad_positions(self) -> frozenset[int]:
        return frozenset(self._rows.bad_positions)

    def _cut(self, end: int) -> tuple[Tensor]:
        return (self._features[end - self._seq_len + 1 : end + 1],)

    def _latest_positions(self, bad_positions: Sequence[int]) -> list[int]:
        """Return the position of each symbol's last row, and of `bad_positions` that may be the last of any symbol."""
        rows = self._rows
        counts = np.isin(rows.positions, bad_positions) | rows.usable
        last_by_symbol = dict(zip(rows.bars["symbol"][counts], rows.positions[counts].tolist(), strict=True))
        last_by_symbol.pop("", None)
        unknown = {*rows.unreadable, *rows.positions[(rows.bars["symbol"] == "").to_numpy()].tolist()}
        return sorted([*last_by_symbol.values(), *unknown.intersection(bad_positions)])

    def _describe(self, position: int) -> dict[str, Any]:
        """Return the values of a row that identify it, as far as they are known."""
        if position in self._rows.unreadable:
            return {}
        row = int(np.searchsorted(self._rows.positions, position))
        symbol, time, close = (column[row] for column in self._columns)
        value: dict[str, Any] = {} if symbol in (ONLY_SYMBOL, "") else {"symbol": symbol}
        if not np.isnat(time):
            value["time"] = time.item().isoformat()
        if np.isfinite(close):
            value["close"] = float(close)
        if count := self._unusable_rows.get(position):
            value["unusable_rows"] = count
        return value

    @cached_property
    def _columns(self) -> list[NDArray[Any]]:
        # A row of a data frame takes a hundred times as long.
        return [self._rows.bars[name].to_numpy() for name in ("symbol", "time", "close")]

    @cached_property
    def _unusable_rows(self) -> dict[int, int]:
        """The number of unusable rows within the history of each bar: its sequence, and the warm-up before that."""
        if not self._rows.bad_positions:
            return {}
        table, codes = self._table, self._bars["symbol"].cat.codes.to_numpy()
        positions, counts = self._bars.index.to_numpy(), {}
        for number, symbol in enumerate(self._bars["symbol"].cat.categories):
            bad = self._bad_positions_of(symbol)
            table_rows = np.flatnonzero(table.symbol == number)
            if not len(bad) or not len(table_rows):
                continue
            first_row = int(np.searchsorted(codes, number))
            warm_up = int(table.row[table_rows[0]]) - first_row
            for end in table_rows[self._seq_len - 1 :].tolist():
                start = positions[table.row[end] - self._seq_len + 1 - warm_up]
                counts[int(table.position[end])] = int(
                    np.searchsorted(bad, table.position[end]) - np.searchsorted(bad, start)
                )
        return counts

    def _bad_positions_of(self, symbol: str) -> NDArray[np.int64]:
        """Return the unusable rows of a symbol, and those of an unknown one."""
        rows = self._rows
        of_symbol = rows.bars["symbol"].isin([symbol, ""]).to_numpy() & ~rows.usable
        return np.sort(np.append(rows.positions[of_symbol], np.array([*rows.unreadable], dtype=np.int64)))

    def _too_few_bars(self) -> DataError:
        middle, coarse = self._preprocessing.timeframes
        return DataError(
            f"none of the {self._rows.count:,} bars has a full history",
            problems=[
                f"{len(self._table.close):,} bars remain after the warm-up, which needs closed bars of {middle} and "
                f"{coarse}; a prediction needs {self._seq_len} of one symbol"
            ],
            hint="provide more bars before those to predict",
        )


def predict(logits: Tensor, weights: Tensor | None, classes: Sequence[str], members: Sequence[str]) -> list[Any]:
    """Return for each sample its most probable class with all probabilities, and the weights of an ensemble's members.

    `logits` is (n, classes), `weights` (n, members) or None.
    """
    rows = logits.double().softmax(dim=-1).tolist()
    weight_rows = [] if weights is None else weights.double().tolist()
    predictions: list[dict[str, Any]] = [
        {"prediction": classes[row.index(max(row))], "probabilities": dict(zip(classes, row, strict=True))}
        for row in rows
    ]
    for prediction, row in zip(predictions, weight_rows, strict=False):
        prediction["weights"] = dict(zip(members, row, strict=True))
    return predictions
