import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from shoestring_recipes.temporal.table import Table, tabulate
from shoestring_recipes.temporal.windows import Windows, classify, collate, last_bars

from .market import concatenate, random_bars


def build_table(*lengths: int) -> Table:
    """Return a table of symbols with the given numbers of bars, all starting at moment 0."""
    moment = np.concatenate([np.arange(length) for length in lengths])
    return Table(
        features=moment[:, None].astype(np.float32),
        close=1.0 + moment,
        symbol=np.repeat(np.arange(len(lengths)), lengths),
        moment=moment,
        row=np.arange(len(moment)),
        position=np.arange(len(moment)),
    )


def build_windows(count: int = 30, seq_len: int = 4) -> Windows:
    features = torch.arange(count * 2.0).reshape(count, 2)
    ends = torch.arange(seq_len - 1, count)
    return Windows(features, ends, ends % 3, seq_len)


def test_the_last_bars_of_a_symbol_are_no_samples() -> None:
    assert list(last_bars(build_table(20), 5, 3, 0, 20)) == list(range(4, 17))


def test_no_sample_crosses_a_symbol() -> None:
    table = build_table(20, 15, 6)
    ends = last_bars(table, 5, 3, 0, 20)
    for end in ends:
        assert len(set(table.symbol[end - 4 : end + 4])) == 1
    assert list(ends) == [*range(4, 17), *range(24, 32)]  # the third has 6 bars, a sample needs 8


def test_a_sample_and_its_label_lie_within_one_part() -> None:
    table = build_table(100, 100)
    for first, stop in ((0, 70), (70, 85), (85, 100)):
        ends = last_bars(table, 5, 3, first, stop)
        assert len(ends)
        assert table.moment[ends - 4].min() == first
        assert table.moment[ends + 3].max() == stop - 1


def test_parts_are_split_by_time_not_by_row() -> None:
    late = random_bars(300, symbol="B").assign(time=lambda bars: bars["time"] + np.timedelta64(200, "h"))
    table = tabulate(concatenate(random_bars(300, symbol="A"), late))
    half = table.moments // 2
    train, test = last_bars(table, 5, 3, 0, half), last_bars(table, 5, 3, half, table.moments)
    assert set(table.symbol[train]) == set(table.symbol[test]) == {0, 1}
    assert table.moment[train + 3].max() < table.moment[test - 4].min()


def test_too_few_bars_give_no_samples() -> None:
    assert not len(last_bars(build_table(7), 5, 3, 0, 7))
    assert len(last_bars(build_table(8), 5, 3, 0, 8)) == 1


def test_classes_by_hand() -> None:
    close = np.array([100.0, 100.0, 101.0, 99.0, 100.5, 99.5, 100.4])
    assert classify(close, np.zeros(1, int), 2, 0.006).tolist() == [2]
    assert [int(classify(close, np.zeros(1, int), ahead, 0.006)[0]) for ahead in range(1, 7)] == [1, 2, 0, 1, 1, 1]
    assert [int(classify(close, np.zeros(1, int), ahead, 0.0)[0]) for ahead in range(1, 7)] == [1, 2, 0, 2, 0, 2]


def test_a_batch_equals_its_samples() -> None:
    data = build_windows()
    indices = [5, 0, 26, 5]
    inputs, labels = collate(data.__getitems__(indices))
    expected_inputs, expected_labels = collate([data[index] for index in indices])
    assert inputs.shape == (4, 4, 2) and torch.equal(inputs, expected_inputs)
    assert labels.dtype == torch.int64 and torch.equal(labels, expected_labels)
    assert torch.equal(inputs[1], data.features[:4])
    assert torch.equal(inputs[2], data.features[-4:])


def test_samples_share_one_table() -> None:
    data = build_windows()
    data.features[10] = -1
    assert sum(bool((data[index][0] == -1).any()) for index in range(len(data))) == 4


def test_samples_are_copies_of_the_table() -> None:
    data = build_windows()
    original = data.features.clone()
    data[3][0].zero_()
    data.__getitems__([3])[0].zero_()
    assert torch.equal(data.features, original)


@pytest.mark.parametrize("part", [build_windows(), Subset(build_windows(), [3, 1, 2])])
def test_data_loader_of_torch_gives_the_same_batches(part: Windows) -> None:
    (inputs, labels), *_ = DataLoader(part, batch_size=3, collate_fn=collate)
    assert torch.equal(inputs, torch.stack([part[index][0] for index in range(3)]))
    assert torch.equal(labels, torch.stack([part[index][1] for index in range(3)]))
