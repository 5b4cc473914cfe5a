import sys

import pytest
import torch
from torch.utils.data import TensorDataset

from shoestring.recipe.finding import choose
from shoestring.training.data import resident
from shoestring.training.data.batches import collate_function, fetch
from shoestring.training.data.loading import Loader
from shoestring.training.data.order import DataOrder


@pytest.fixture(scope="module")
def temporal():
    loaded, _ = choose("temporal", {"size": "tiny"})
    return loaded.recipe, loaded.data()["train"]


def test_only_small_movable_datasets_fit(temporal):
    _, data = temporal
    assert data.nbytes > data.features.nbytes > 10_000
    assert resident.fits(data, data.nbytes) and not resident.fits(data, data.nbytes - 1)
    assert not resident.fits(TensorDataset(torch.zeros(1)), 10**9)


def test_nothing_is_moved_without_a_gpu(temporal):
    assert resident.resident(temporal[1], torch.device("cpu")) is None


def test_dataset_on_a_device_gives_batches_there(temporal):
    recipe, data = temporal
    batch = fetch(data.to(torch.device("meta")), collate_function(recipe), [3, 1], seed=0, epoch=0)
    assert [part.device.type for part in batch] == ["meta", "meta"]
    assert [part.shape for part in batch] == [
        part.shape for part in fetch(data, recipe.collate, [3, 1], seed=0, epoch=0)
    ]


def test_resident_dataset_needs_no_workers(temporal, monkeypatch):
    recipe, data = temporal
    on_device = data.to(torch.device("meta"))
    monkeypatch.setattr(sys.modules[Loader.__module__], "resident", lambda *_: on_device)
    order = DataOrder(samples=len(data), effective_batch=8, seed=0)
    with Loader(recipe, data, order, seed=0, device=torch.device("meta"), workers=3) as loader:
        assert loader.workers == 0
        (batch, size), *_ = loader.microbatches(0, 8)
        assert (size, batch[0].device.type, loader.pids) == (8, "meta", [])
