import random
from collections import UserDict

import torch
from torch.utils.data import TensorDataset, default_collate

from shoestring.data import batches
from shoestring.data.batches import Draws, fetch, to_device
from shoestring.data.in_order import in_order

CPU = torch.device("cpu")


class Augmented:
    """Each sample draws from every generator."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor([index, random.random(), torch.rand(1).item()], dtype=torch.float64)


def test_a_sample_is_augmented_the_same_whatever_batch_it_falls_into():
    data = Augmented()
    whole = fetch(data, default_collate, [3, 1, 4, 5], seed=0, epoch=2)
    torch.rand(7)
    pieces = [fetch(data, default_collate, some, seed=0, epoch=2) for some in ([3], [1, 4, 5])]
    assert torch.equal(torch.cat(pieces), whole)
    assert len(whole[:, 1].unique()) == len(whole[:, 2].unique()) == 4  # and each sample its own way
    assert not torch.equal(fetch(data, default_collate, [3, 1, 4, 5], seed=0, epoch=3), whole)
    assert not torch.equal(fetch(data, default_collate, [3, 1, 4, 5], seed=1, epoch=2), whole)


def test_fetching_leaves_the_generators_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    fetch(Augmented(), default_collate, [1, 2], seed=0, epoch=0)
    assert torch.equal(torch.rand(1), expected)


def test_a_dataset_that_gives_many_at_once_is_asked_once():
    class Batched(Augmented):
        asked = ()

        def __getitems__(self, indices):
            self.asked += (indices,)
            return [torch.tensor(index) for index in indices]

    data = Batched()
    assert fetch(data, default_collate, (2, 0), seed=0, epoch=0).tolist() == [2, 0]
    assert data.asked == ([2, 0],)


def test_evaluation_goes_through_everything_in_order():
    data = TensorDataset(torch.arange(7))
    batches = list(in_order(data, object(), 3, CPU, 0))
    assert [batch[0].tolist() for batch, _ in batches] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [size for _, size in batches] == [3, 3, 1]


def test_every_tensor_of_a_batch_moves_and_nothing_else():
    class Encoding(UserDict):
        def to(self, device):
            return "moved itself"

    batch = {"x": torch.zeros(2), "more": [(torch.ones(1), "text", 3)]}
    moved = to_device(batch, torch.device("meta"))
    assert moved["x"].device.type == moved["more"][0][0].device.type == "meta"
    assert moved["more"][0][1:] == ("text", 3)
    assert to_device(Encoding(), CPU) == "moved itself"


class Seldom(Augmented):
    """Only some samples are augmented."""

    def __getitem__(self, index):
        return super().__getitem__(index) if index > 5 else torch.full((3,), float(index), dtype=torch.float64)


def test_a_sample_is_the_same_whether_or_not_others_were_seen_to_draw():
    draws = Draws()
    at_once = [fetch(Seldom(), default_collate, some, seed=0, epoch=2) for some in ([0, 1], [2, 7, 3], [8, 4])]
    told = [
        fetch(Seldom(), default_collate, some, seed=0, epoch=2, draws=draws) for some in ([0, 1], [2, 7, 3], [8, 4])
    ]
    assert all(torch.equal(a, b) for a, b in zip(at_once, told, strict=True))
    assert draws.seen


def test_samples_that_draw_nothing_are_not_seeded(monkeypatch):
    draws, seeded = Draws(), []
    monkeypatch.setattr(batches, "seed_host", seeded.append)
    for some in ([1, 2], [3], [4, 5]):
        fetch(Seldom(), default_collate, some, seed=0, epoch=0, draws=draws)
    assert len(seeded) == 2 and draws.seen is False


def test_rows_of_tensors_are_taken_at_once_and_are_those_taken_one_by_one():
    data = TensorDataset(torch.randn(10, 3), torch.arange(10), torch.rand(10, 2, 2))
    expected = default_collate([data[index] for index in (7, 0, 7)])
    found = fetch(data, default_collate, [7, 0, 7], seed=0, epoch=0)
    assert type(found) is type(expected)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    own = fetch(data, len, [7, 0, 7], seed=0, epoch=0)
    assert own == 3  # a collate of the recipe's own gets the samples
