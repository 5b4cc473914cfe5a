import random
from collections import UserDict
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import Subset, TensorDataset, default_collate

from shoestring.training.data import batches
from shoestring.training.data.batches import SampleRandomness, fetch, to_device
from shoestring.training.data.loading import Loader
from shoestring.training.data.order import DataOrder
from shoestring.training.data.sequential import sequential_batches

CPU = torch.device("cpu")


class Augmented:
    """Each sample draws from every generator."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor([index, random.random(), torch.rand(1).item()], dtype=torch.float64)


@pytest.mark.parametrize("data", [Augmented(), Subset(Augmented(), range(10))], ids=["own", "subset"])
def test_augmentation_does_not_depend_on_the_batch(data):
    whole = fetch(data, default_collate, [3, 1, 4, 5], seed=0, epoch=2)
    torch.rand(7)
    pieces = [fetch(data, default_collate, indices, seed=0, epoch=2) for indices in ([3], [1, 4, 5])]
    assert torch.equal(torch.cat(pieces), whole)
    assert len(whole[:, 1].unique()) == len(whole[:, 2].unique()) == 4  # and each sample differently
    assert not torch.equal(fetch(data, default_collate, [3, 1, 4, 5], seed=0, epoch=3), whole)
    assert not torch.equal(fetch(data, default_collate, [3, 1, 4, 5], seed=1, epoch=2), whole)


def test_fetching_preserves_the_generators():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    fetch(Augmented(), default_collate, [1, 2], seed=0, epoch=0)
    assert torch.equal(torch.rand(1), expected)


def test_getitems_is_called_once():
    class Batched(Augmented):
        calls = ()

        def __getitems__(self, indices):
            self.calls += (indices,)
            return [torch.tensor(index) for index in indices]

    data = Batched()
    assert fetch(data, default_collate, (2, 0), seed=0, epoch=0).tolist() == [2, 0]
    assert data.calls == ([2, 0],)


def test_sequential_batches_are_complete_and_ordered():
    data = TensorDataset(torch.arange(7))
    batches = list(sequential_batches(data, object(), 3, CPU, 0))
    assert [batch[0].tolist() for batch, _ in batches] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [size for _, size in batches] == [3, 3, 1]


def test_to_device_moves_only_tensors():
    class Encoding(UserDict):
        def to(self, device):
            return "moved itself"

    batch = {"x": torch.zeros(2), "more": [(torch.ones(1), "text", 3)]}
    moved = to_device(batch, torch.device("meta"))
    assert moved["x"].device.type == moved["more"][0][0].device.type == "meta"
    assert moved["more"][0][1:] == ("text", 3)
    assert to_device(Encoding(), CPU) == "moved itself"


def test_evaluation_may_collate_otherwise():
    recipe = SimpleNamespace(collate=sum)
    assert [batch for batch, _ in sequential_batches(range(4), recipe, 2, CPU, 0)] == [1, 5]
    recipe.evaluation_collate = tuple
    assert [batch for batch, _ in sequential_batches(range(4), recipe, 2, CPU, 0)] == [(0, 1), (2, 3)]
    order = DataOrder(samples=4, effective_batch=4, seed=0)
    with Loader(recipe, range(4), order, seed=0, device=CPU, workers=0) as loader:
        assert [batch for batch, _ in loader.microbatches(0, 4)] == [6]


class PartlyAugmented(Augmented):
    """Only some samples are augmented."""

    def __getitem__(self, index):
        return super().__getitem__(index) if index > 5 else torch.full((3,), float(index), dtype=torch.float64)


def test_samples_do_not_depend_on_detected_randomness():
    randomness, index_lists = SampleRandomness(), ([0, 1], [2, 7, 3], [8, 4])
    separate = [fetch(PartlyAugmented(), default_collate, indices, seed=0, epoch=2) for indices in index_lists]
    shared = [
        fetch(PartlyAugmented(), default_collate, indices, seed=0, epoch=2, randomness=randomness)
        for indices in index_lists
    ]
    assert all(torch.equal(a, b) for a, b in zip(separate, shared, strict=True))
    assert randomness.detected


def test_samples_without_randomness_are_not_seeded(monkeypatch):
    randomness, seeds = SampleRandomness(), []
    monkeypatch.setattr(batches, "seed_host", seeds.append)
    for indices in ([1, 2], [3], [4, 5]):
        fetch(PartlyAugmented(), default_collate, indices, seed=0, epoch=0, randomness=randomness)
    assert len(seeds) == 2 and randomness.detected is False


def test_tensor_rows_equal_individually_fetched_samples():
    data = TensorDataset(torch.randn(10, 3), torch.arange(10), torch.rand(10, 2, 2))
    expected = default_collate([data[index] for index in (7, 0, 7)])
    batch = fetch(data, default_collate, [7, 0, 7], seed=0, epoch=0)
    assert type(batch) is type(expected)
    assert all(torch.equal(a, b) for a, b in zip(batch, expected, strict=True))
    assert fetch(data, len, [7, 0, 7], seed=0, epoch=0) == 3  # a recipe's collate gets the samples
