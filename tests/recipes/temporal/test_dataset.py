import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from shoestring.base.errors import DataError
from shoestring_recipes.temporal.dataset import Sampling, load_bars
from shoestring_recipes.temporal.windows import Windows

from .market import change_future, concatenate, random_bars, write_csv

HORIZON = 4
WARM_UP = 72  # bars: three days of hourly bars
BARS = random_bars(WARM_UP + 400)


def load_windows(path: Path | str | None, *, seq_len: int = 10, fold: str | None = None) -> dict[str, Windows]:
    sampling = Sampling(seq_len=seq_len, horizon=HORIZON, threshold=0.006, fold=fold)
    return load_bars(path and Path(path), sampling).parts


def samples_before(data: Windows, *, row: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the samples whose label is known before `row` of the table."""
    return data.__getitems__((data.ends + HORIZON < row).nonzero().flatten().tolist())


@pytest.mark.parametrize("cut", [*np.random.default_rng(0).integers(280, 400, 6), 280, 399])
def test_samples_do_not_depend_on_later_bars(tmp_path: Path, cut: int) -> None:
    original = load_windows(write_csv(tmp_path / "original.csv", BARS))
    changed = load_windows(write_csv(tmp_path / "changed.csv", change_future(BARS, WARM_UP + int(cut), seed=int(cut))))
    for part in original:
        assert torch.equal(original[part].ends, changed[part].ends)
        assert all(
            map(torch.equal, samples_before(original[part], row=int(cut)), samples_before(changed[part], row=int(cut)))
        )
    assert len(samples_before(original["train"], row=280)[1]) == len(original["train"]) == 280 - 10 - HORIZON + 1
    assert not torch.equal(original["test"].features, changed["test"].features)


def test_parts_cover_the_time_with_gaps_between_samples(tmp_path: Path) -> None:
    parts = load_windows(write_csv(tmp_path / "bars.csv", BARS))
    spans = [(int(part.ends[0]) - 9, int(part.ends[-1]) + HORIZON) for part in parts.values()]
    assert spans == [(0, 279), (280, 339), (340, 399)]


def test_labels_are_those_of_the_closes(tmp_path: Path) -> None:
    close = BARS["close"].to_numpy()[WARM_UP:]
    for part in load_windows(write_csv(tmp_path / "bars.csv", BARS)).values():
        for end, label in zip(part.ends.tolist(), part.labels.tolist(), strict=True):
            change = close[end + HORIZON] / close[end] - 1
            assert label == (2 if change > 0.006 else 0 if change < -0.006 else 1)


def test_symbol_order_in_the_file_does_not_matter(tmp_path: Path) -> None:
    first_bars, second_bars, third_bars = (random_bars(300, symbol=name, seed=seed) for seed, name in enumerate("CAB"))
    orders = [
        concatenate(first_bars, second_bars, third_bars),
        concatenate(third_bars, second_bars, first_bars),
        concatenate(first_bars, second_bars, third_bars).sort_values("time", kind="stable"),
    ]
    expected, *reordered = [load_windows(write_csv(tmp_path / f"{i}.csv", bars)) for i, bars in enumerate(orders)]
    for parts in reordered:
        for name in expected:
            assert torch.equal(expected[name].features, parts[name].features)
            assert torch.equal(expected[name].ends, parts[name].ends)
            assert torch.equal(expected[name].labels, parts[name].labels)


def test_later_folds_train_more_and_test_later(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "bars.csv", BARS)
    first, second = load_windows(path, fold="1/2"), load_windows(path, fold="2/2")
    assert len(second["train"]) == len(first["train"]) + 100
    assert int(first["test"].ends[-1]) < int(second["test"].ends[0])


def test_a_file_is_read_again_only_after_changes(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "bars.csv", BARS)
    first = load_windows(path)
    assert load_windows(path)["train"] is first["train"]
    write_csv(path, change_future(BARS, 300))
    os.utime(path, (1, 1))
    assert load_windows(path)["train"] is not first["train"]


def test_callers_cannot_modify_the_cached_parts() -> None:
    del load_windows(None)["test"]
    assert "test" in load_windows(None)


def test_the_sample_bars_are_enough_for_every_fold() -> None:
    assert {name: len(part) for name, part in load_windows(None).items()} == {
        "train": 684,
        "validation": 137,
        "test": 136,
    }
    for fold in ("1/5", "5/5"):
        assert all(map(len, load_windows(None, fold=fold).values()))


@pytest.mark.parametrize("rows", [1, 2, 60, WARM_UP, WARM_UP + 80])
def test_too_few_rows_error_gives_the_required_number(tmp_path: Path, rows: int) -> None:
    path = write_csv(tmp_path / "bars.csv", BARS[:rows])
    with pytest.raises(DataError, match=f"too few rows: {rows}") as error:
        load_windows(path)
    text = str(error.value)
    assert "14 bars of one part: 10 in its sequence and 4 up to its label" in text
    assert "provide 94 bars after the warm-up" in text  # 14 of them in each 15 %
    assert "parts without any sample: " in text


def test_the_required_number_of_rows_is_sufficient(tmp_path: Path) -> None:
    assert all(map(len, load_windows(write_csv(tmp_path / "bars.csv", BARS[: WARM_UP + 94])).values()))


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.csv cannot be read"):
        load_windows(tmp_path / "absent.csv")


def test_a_short_symbol_does_not_change_others(tmp_path: Path) -> None:
    short = random_bars(20, symbol="ZZZ")
    single, combined = (
        load_windows(write_csv(tmp_path / f"{i}.csv", bars)) for i, bars in enumerate((BARS, concatenate(BARS, short)))
    )
    assert all(torch.equal(single[part].features, combined[part].features) for part in single)


def test_a_read_only_folder_can_be_read(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "bars.csv", pd.DataFrame(BARS))
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        assert len(load_windows(path)["train"])
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.parametrize("fold", [None, *(f"{number}/5" for number in range(1, 6))])
def test_no_bar_is_used_by_two_parts(fold: str | None) -> None:
    seq_len = 10
    used = {
        name: {int(end) + offset for end in part.ends for offset in (*range(1 - seq_len, 1), HORIZON)}
        for name, part in load_windows(None, seq_len=seq_len, fold=fold).items()
    }
    assert max(used["train"]) < min(used["validation"]) <= max(used["validation"]) < min(used["test"])


def test_the_features_of_a_bar_are_contiguous() -> None:
    parts = load_windows(None, seq_len=20)
    # Gathering bars whose features are not adjacent takes six times as long.
    assert all(windows.features.is_contiguous() for windows in parts.values())
