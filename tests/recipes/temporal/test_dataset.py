import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from shoestring.errors import DataError
from shoestring.recipes.temporal.dataset import parts
from shoestring.recipes.temporal.windows import Windows

from .market import candles, otherwise_from, several, written

HORIZON = 4
WARM = 72  # three days of hourly bars
BARS = candles(WARM + 400)


def parts_of(path: Path | str | None, *, seq_len: int = 10, fold: str | None = None) -> dict[str, Windows]:
    file = None if path is None else str(path)
    return parts(file, seq_len=seq_len, horizon=HORIZON, threshold=0.006, fold=fold)[0]


def samples(data: Windows, *, before: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Those whose label is known before a row of the table."""
    return data.__getitems__((data.ends + HORIZON < before).nonzero().flatten().tolist())


@pytest.mark.parametrize("cut", [*np.random.default_rng(0).integers(280, 400, 6), 280, 399])
def test_no_sample_changes_with_what_comes_after_it(tmp_path: Path, cut: int) -> None:
    known = parts_of(written(tmp_path / "known.csv", BARS))
    other = parts_of(written(tmp_path / "other.csv", otherwise_from(BARS, WARM + int(cut), seed=int(cut))))
    for part in known:
        assert torch.equal(known[part].ends, other[part].ends)
        assert all(map(torch.equal, samples(known[part], before=int(cut)), samples(other[part], before=int(cut))))
    assert len(samples(known["train"], before=280)[1]) == len(known["train"]) == 280 - 10 - HORIZON + 1
    assert not torch.equal(known["test"].features, other["test"].features)


def test_the_parts_cover_the_time_and_leave_a_gap_between_them(tmp_path: Path) -> None:
    found = parts_of(written(tmp_path / "bars.csv", BARS))
    spans = [(int(part.ends[0]) - 9, int(part.ends[-1]) + HORIZON) for part in found.values()]
    assert spans == [(0, 279), (280, 339), (340, 399)]


def test_labels_are_those_of_the_closes(tmp_path: Path) -> None:
    close = BARS["close"].to_numpy()[WARM:]
    for part in parts_of(written(tmp_path / "bars.csv", BARS)).values():
        for end, label in zip(part.ends.tolist(), part.labels.tolist(), strict=True):
            change = close[end + HORIZON] / close[end] - 1
            assert label == (2 if change > 0.006 else 0 if change < -0.006 else 1)


def test_the_order_of_symbols_in_the_file_does_not_matter(tmp_path: Path) -> None:
    one, two, three = (candles(300, symbol=name, seed=seed) for seed, name in enumerate("CAB"))
    orders = [
        several(one, two, three),
        several(three, two, one),
        several(one, two, three).sort_values("time", kind="stable"),
    ]
    first, *others = [parts_of(written(tmp_path / f"{i}.csv", bars)) for i, bars in enumerate(orders)]
    for other in others:
        for part in first:
            assert torch.equal(first[part].features, other[part].features)
            assert torch.equal(first[part].ends, other[part].ends)
            assert torch.equal(first[part].labels, other[part].labels)


def test_a_fold_trains_on_more_and_tests_on_later_bars(tmp_path: Path) -> None:
    path = written(tmp_path / "bars.csv", BARS)
    first, second = parts_of(path, fold="1/2"), parts_of(path, fold="2/2")
    assert len(second["train"]) == len(first["train"]) + 100
    assert int(first["test"].ends[-1]) < int(second["test"].ends[0])


def test_a_file_is_read_once_and_again_when_it_changed(tmp_path: Path) -> None:
    path = written(tmp_path / "bars.csv", BARS)
    first = parts_of(path)
    assert parts_of(path)["train"] is first["train"]
    written(path, otherwise_from(BARS, 300))
    os.utime(path, (1, 1))
    assert parts_of(path)["train"] is not first["train"]


def test_what_one_caller_takes_away_the_next_still_finds() -> None:
    del parts_of(None)["test"]
    assert "test" in parts_of(None)


def test_the_sample_bars_are_enough_for_every_fold() -> None:
    assert {name: len(part) for name, part in parts_of(None).items()} == {"train": 684, "validation": 137, "test": 136}
    for fold in ("1/5", "5/5"):
        assert all(map(len, parts_of(None, fold=fold).values()))


@pytest.mark.parametrize("rows", [1, 2, 60, WARM, WARM + 80])
def test_too_few_rows_are_an_error_that_says_how_many_are_needed(tmp_path: Path, rows: int) -> None:
    path = written(tmp_path / "bars.csv", BARS[:rows])
    with pytest.raises(DataError, match=f"too few rows: {rows}") as refused:
        parts_of(path)
    text = str(refused.value)
    assert "14 bars of one part: 10 in its sequence and 4 to its label" in text
    assert "after the warm-up 94 bars are needed" in text  # 14 of them in each 15 %
    assert "without any sample: " in text


def test_as_many_rows_as_the_error_says_are_enough(tmp_path: Path) -> None:
    assert all(map(len, parts_of(written(tmp_path / "bars.csv", BARS[: WARM + 94])).values()))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.csv cannot be read"):
        parts_of(tmp_path / "absent.csv")


def test_a_short_symbol_does_not_spoil_the_others(tmp_path: Path) -> None:
    short = candles(20, symbol="ZZZ")
    alone, together = (
        parts_of(written(tmp_path / f"{i}.csv", bars)) for i, bars in enumerate((BARS, several(BARS, short)))
    )
    assert all(torch.equal(alone[part].features, together[part].features) for part in alone)


def test_a_read_only_folder_is_enough(tmp_path: Path) -> None:
    path = written(tmp_path / "bars.csv", pd.DataFrame(BARS))
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        assert len(parts_of(path)["train"])
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.parametrize("fold", [None, *(f"{number}/5" for number in range(1, 6))])
def test_no_bar_is_in_two_parts_as_input_or_as_label(fold: str | None) -> None:
    seq_len = 10
    used = {
        name: {int(end) + offset for end in part.ends for offset in (*range(1 - seq_len, 1), HORIZON)}
        for name, part in parts_of(None, seq_len=seq_len, fold=fold).items()
    }
    assert max(used["train"]) < min(used["validation"]) <= max(used["validation"]) < min(used["test"])


def test_each_bar_lies_in_one_piece() -> None:
    found, _ = parts(None, seq_len=20, horizon=8, threshold=0.006, fold=None)
    # Gathering bars whose features lie far from each other takes six times as long.
    assert all(windows.features.is_contiguous() for windows in found.values())
