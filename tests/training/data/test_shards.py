import random
from itertools import chain, count, pairwise

import pytest
import torch

from shoestring.base.errors import DataError, UsageError
from shoestring.recipe.contract import datasets
from shoestring.recipe.subset import Subset
from shoestring.training.data.order import DataOrder
from shoestring.training.data.shards import Shards

COUNTS = (10, 0, 7, 23, 5, 1, 30)


def shards(counts=COUNTS, *, opened=None, **arguments):
    def read(number):
        if opened is not None:
            opened.append(number)
        return iter([(number, position) for position in range(counts[number])])

    return Shards(range(len(counts)), counts, read, **arguments)


def epoch(order, number):
    return [order.indices(number * order.updates_per_epoch + update) for update in range(order.updates_per_epoch)]


def test_samples_are_in_the_order_of_the_shards():
    data = shards()
    assert list(data) == [(number, position) for number, samples in enumerate(COUNTS) for position in range(samples)]
    assert len(data) == sum(COUNTS)
    with pytest.raises(IndexError):
        data[-1]


@pytest.mark.parametrize("mix", [1, 2, 5, 100])
@pytest.mark.parametrize("effective_batch", [1, 8, 75, 1000])
def test_epoch_has_every_sample_once_with_any_mix(mix, effective_batch):
    order = DataOrder.of(shards(mix=mix), effective_batch=effective_batch, seed=0)
    for number in range(2):
        assert sorted(chain(*epoch(order, number))) == list(range(sum(COUNTS)))


def test_order_depends_on_seed_and_epoch_and_mixes_shards():
    order, equal_order = (DataOrder.of(shards(), effective_batch=8, seed=3) for _ in range(2))
    other_seed = DataOrder.of(shards(), effective_batch=8, seed=4)
    assert epoch(order, 1) == epoch(equal_order, 1)
    assert epoch(order, 0) != epoch(order, 1) and epoch(order, 0) != epoch(other_seed, 0)
    data, larger = shards(), DataOrder.of(shards(), effective_batch=19, seed=3)
    samples = [data[index] for index in chain(*epoch(order, 0))]
    assert list(chain(*epoch(larger, 0))) == list(chain(*epoch(order, 0)))
    assert samples != sorted(samples)
    shard_numbers = [shard for shard, _ in samples]
    changes = sum(before != after for before, after in pairwise(shard_numbers))
    assert changes > len(COUNTS)  # shards are mixed, but at most two at a time:
    spans = [
        shard_numbers[shard_numbers.index(shard) : len(shard_numbers) - shard_numbers[::-1].index(shard)]
        for shard in set(shard_numbers)
    ]
    assert all(len(set(span)) <= 2 for span in spans)


def test_shards_are_opened_once_and_only_when_needed():
    opened, order = [], DataOrder.of(shards(), effective_batch=8, seed=0)
    straight = shards(opened=opened)
    samples = [[straight[index] for index in indices] for indices in epoch(order, 0)]
    assert sorted(opened) == [number for number, count in enumerate(COUNTS) if count]
    opened.clear()
    resumed = shards(opened=opened)
    last = order.updates_per_epoch - 1
    assert [resumed[index] for index in order.indices(last)] == samples[last]
    assert len(opened) <= 2 * resumed.mix


def test_at_most_two_groups_are_cached():
    alive = set()

    class CountedShard(list):
        def __init__(self, number):
            super().__init__([number])
            self.number = number
            alive.add(number)

        def __del__(self):
            alive.discard(self.number)

    data = Shards(range(50), [1] * 50, CountedShard, mix=2)
    for index in range(50):
        assert data[index] == index and len(alive) <= 4


def test_forked_process_opens_its_own_shards(monkeypatch):
    opened = []
    data = shards(opened=opened)
    assert data[0] == (0, 0) and opened == [0]
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert data[0] == (0, 0) and opened == [0, 0]


def test_sequence_is_not_copied():
    table = torch.arange(6).reshape(2, 3)
    data = Shards([0, 1], [3, 3], lambda number: table[number])
    assert data[4].data_ptr() == table[1, 1].data_ptr()


def test_decode_draws_each_time_but_read_does_not():
    drawn = []
    for seed in 5, 6, 5:
        random.seed(seed)
        data = Shards([0], [1], lambda _: iter([random.random()]), decode=lambda raw: (raw, random.random()))
        drawn.append(data[0])
    first, other_seed, same_seed = drawn
    assert first == same_seed and first[0] == other_seed[0] and first[1] != other_seed[1]
    assert data[0][1] != first[1]


def test_single_shard_is_shuffled_each_epoch():
    order = DataOrder.of(shards((30,)), effective_batch=10, seed=0)
    assert epoch(order, 0) != epoch(order, 1)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (iter(range(3)), "has 3 samples, but its count is 5"),
        (count(), "has 6 samples or more, but its count is 5"),
        (list(range(9)), "has 9 samples, but its count is 5"),
    ],
)
def test_wrong_count_is_rejected(samples, message):
    with pytest.raises(DataError, match=f"shard one {message}"):
        Shards(["one"], [5], lambda _: samples)[0]


def test_every_problem_is_named():
    with pytest.raises(UsageError) as raised:
        Shards(["a", "b"], [-1, 2], list, mix=0)
    assert raised.value.problems == ("a: -1 samples", "mix=0: must be at least 1")
    with pytest.raises(UsageError, match="2 names, 1 counts"):
        Shards(["a", "b"], [1], list)


def test_subset_preserves_the_shards():
    data = shards()
    subset = Subset(data, list(range(0, len(data), 3)))
    order = DataOrder.of(subset, effective_batch=4, seed=0)
    assert order.mix == 2 and sum(order.shards) == len(subset)
    counts = [sum(index in range(start, stop) for index in subset.indices) for start, stop in spans(COUNTS)]
    assert list(order.shards) == counts
    assert sorted(chain(*epoch(order, 0))) == list(range(len(subset)))


def spans(counts):
    ends = [sum(counts[:number]) for number in range(len(counts) + 1)]
    return list(pairwise(ends))


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return count()


class Sized(Endless):
    def __len__(self):
        return 5


@pytest.mark.parametrize("data", [Endless(), Sized(), (x for x in range(5)), {"train": [1], "validation": Endless()}])
def test_iterable_dataset_is_rejected_with_a_hint(data):
    class Recipe:
        def data(self):
            return data

    with pytest.raises(UsageError, match="can only be read sequentially") as raised:
        datasets(Recipe())
    assert "Shards(names, counts, read)" in str(raised.value)
