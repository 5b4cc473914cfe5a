import sys

import pytest
import torch
from torch.utils.data import TensorDataset

from shoestring.data import resident as module
from shoestring.data.batches import collate_of, fetch
from shoestring.data.loading import Loader
from shoestring.data.order import DataOrder
from shoestring.recipe.finding import choose


@pytest.fixture(scope="module")
def temporal():
    loaded, _ = choose("temporal", {"size": "tiny"})
    return loaded.recipe, loaded.data()["train"]


def test_only_what_is_small_and_can_move_fits(temporal):
    _, data = temporal
    assert data.nbytes > data.features.nbytes > 10_000
    assert module.fits(data, data.nbytes) and not module.fits(data, data.nbytes - 1)
    assert not module.fits(TensorDataset(torch.zeros(1)), 10**9)


def test_without_a_gpu_nothing_moves(temporal):
    assert module.resident(temporal[1], torch.device("cpu")) is None


def test_a_dataset_elsewhere_gives_its_batches_there(temporal):
    recipe, data = temporal
    batch = fetch(data.to(torch.device("meta")), collate_of(recipe), [3, 1], seed=0, epoch=0)
    assert [part.device.type for part in batch] == ["meta", "meta"]
    assert [part.shape for part in batch] == [
        part.shape for part in fetch(data, recipe.collate, [3, 1], seed=0, epoch=0)
    ]


def test_what_is_resident_needs_no_processes(temporal, monkeypatch):
    recipe, data = temporal
    moved = data.to(torch.device("meta"))
    monkeypatch.setattr(sys.modules[Loader.__module__], "resident", lambda *_: moved)
    order = DataOrder(samples=len(data), effective_batch=8, seed=0)
    with Loader(recipe, data, order, seed=0, device=torch.device("meta"), workers=3) as loading:
        assert loading.workers == 0
        (batch, size), *_ = loading.microbatches(0, 8)
        assert (size, batch[0].device.type, loading.pids) == (8, "meta", [])
