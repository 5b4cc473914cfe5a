import random
from itertools import chain, count, pairwise

import pytest
import torch

from shoestring.data.order import DataOrder
from shoestring.data.shards import Shards
from shoestring.errors import DataError, UsageError
from shoestring.recipe.contract import datasets
from shoestring.recipe.subset import Subset

COUNTS = (10, 0, 7, 23, 5, 1, 30)


def shards(counts=COUNTS, *, opened=None, **more):
    def read(number):
        if opened is not None:
            opened.append(number)
        return iter([(number, place) for place in range(counts[number])])

    return Shards(range(len(counts)), counts, read, **more)


def epoch(order, number):
    return [order.indices(number * order.updates_per_epoch + at) for at in range(order.updates_per_epoch)]


def test_it_is_the_shards_one_after_the_other():
    data = shards()
    assert list(data) == [(number, place) for number, samples in enumerate(COUNTS) for place in range(samples)]
    assert len(data) == sum(COUNTS)
    with pytest.raises(IndexError):
        data[-1]


@pytest.mark.parametrize("mix", [1, 2, 5, 100])
@pytest.mark.parametrize("effective_batch", [1, 8, 75, 1000])
def test_an_epoch_has_every_sample_once_whatever_is_mixed(mix, effective_batch):
    order = DataOrder.of(shards(mix=mix), effective_batch=effective_batch, seed=0)
    for number in range(2):
        assert sorted(chain(*epoch(order, number))) == list(range(sum(COUNTS)))


def test_the_order_follows_from_seed_and_epoch_and_mixes_some_shards_at_a_time():
    one, again = (DataOrder.of(shards(), effective_batch=8, seed=3) for _ in range(2))
    other = DataOrder.of(shards(), effective_batch=8, seed=4)
    assert epoch(one, 1) == epoch(again, 1)
    assert epoch(one, 0) != epoch(one, 1) and epoch(one, 0) != epoch(other, 0)
    data, larger = shards(), DataOrder.of(shards(), effective_batch=19, seed=3)
    samples = [data[index] for index in chain(*epoch(one, 0))]
    assert list(chain(*epoch(larger, 0))) == list(chain(*epoch(one, 0)))
    assert samples != sorted(samples)
    inside = [shard for shard, _ in samples]
    changes = sum(before != after for before, after in pairwise(inside))
    assert changes > len(COUNTS)  # mixed, and yet:
    spans = [inside[inside.index(shard) : len(inside) - inside[::-1].index(shard)] for shard in set(inside)]
    assert all(len(set(span)) <= 2 for span in spans)


def test_each_shard_is_opened_once_an_epoch_and_a_resume_opens_what_it_needs():
    opened, order = [], DataOrder.of(shards(), effective_batch=8, seed=0)
    straight = shards(opened=opened)
    seen = [[straight[index] for index in indices] for indices in epoch(order, 0)]
    assert sorted(opened) == [number for number, samples in enumerate(COUNTS) if samples]
    opened.clear()
    resumed = shards(opened=opened)
    last = order.updates_per_epoch - 1
    assert [resumed[index] for index in order.indices(last)] == seen[last]
    assert len(opened) <= 2 * resumed.mix


def test_no_more_than_two_groups_are_kept():
    alive = set()

    class Read(list):
        def __init__(self, number):
            super().__init__([number])
            self.number = number
            alive.add(number)

        def __del__(self):
            alive.discard(self.number)

    data = Shards(range(50), [1] * 50, Read, mix=2)
    for index in range(50):
        assert data[index] == index and len(alive) <= 4


def test_another_process_opens_its_own(monkeypatch):
    opened = []
    data = shards(opened=opened)
    assert data[0] == (0, 0) and opened == [0]
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert data[0] == (0, 0) and opened == [0, 0]


def test_what_is_a_sequence_stays_where_it_is():
    table = torch.arange(6).reshape(2, 3)
    data = Shards([0, 1], [3, 3], lambda number: table[number])
    assert data[4].data_ptr() == table[1, 1].data_ptr()


def test_what_decoding_draws_is_drawn_each_time_and_what_reading_draws_is_always_the_same():
    drawn = []
    for seed in 5, 6, 5:
        random.seed(seed)
        data = Shards([0], [1], lambda _: iter([random.random()]), decode=lambda read: (read, random.random()))
        drawn.append(data[0])
    one, other, again = drawn
    assert one == again and one[0] == other[0] and one[1] != other[1]
    assert data[0][1] != one[1]


def test_a_single_shard_is_shuffled_anew_each_epoch():
    order = DataOrder.of(shards((30,)), effective_batch=10, seed=0)
    assert epoch(order, 0) != epoch(order, 1)


@pytest.mark.parametrize(
    ("samples", "seen"),
    [
        (iter(range(3)), "has 3 samples, its count says 5"),
        (count(), "has 6 samples or more, its count says 5"),
        (list(range(9)), "has 9 samples, its count says 5"),
    ],
)
def test_a_shard_that_is_not_as_it_was_counted_is_refused(samples, seen):
    with pytest.raises(DataError, match=f"shard one {seen}"):
        Shards(["one"], [5], lambda _: samples)[0]


def test_every_problem_is_named():
    with pytest.raises(UsageError) as caught:
        Shards(["a", "b"], [-1, 2], list, mix=0)
    assert caught.value.problems == ("a: -1 samples", "mix=0: at least 1")
    with pytest.raises(UsageError, match="2 names, 1 counts"):
        Shards(["a", "b"], [1], list)


def test_a_subset_keeps_to_the_shards():
    data = shards()
    subset = Subset(data, list(range(0, len(data), 3)))
    order = DataOrder.of(subset, effective_batch=4, seed=0)
    assert order.mix == 2 and sum(order.shards) == len(subset)
    counts = [sum(index in range(start, stop) for index in subset.indices) for start, stop in spans(COUNTS)]
    assert list(order.shards) == counts
    assert sorted(chain(*epoch(order, 0))) == list(range(len(subset)))


def spans(counts):
    ends = [sum(counts[:at]) for at in range(len(counts) + 1)]
    return list(pairwise(ends))


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return count()


class Sized(Endless):
    def __len__(self):
        return 5


@pytest.mark.parametrize("data", [Endless(), Sized(), (x for x in range(5)), {"train": [1], "validation": Endless()}])
def test_what_can_only_be_read_from_its_beginning_is_refused_with_what_to_do(data):
    class Recipe:
        def data(self):
            return data

    with pytest.raises(UsageError, match="can only be read sequentially") as caught:
        datasets(Recipe())
    assert "Shards(names, counts, read)" in str(caught.value)
