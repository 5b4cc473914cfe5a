"""Batches on a GPU are those that were asked for, however they got there: directly, from workers by pinned memory, or
from a dataset that is on the GPU already."""

import os
import signal
from dataclasses import dataclass

import psutil
import pytest
import torch

from shoestring.base.errors import RunError
from shoestring.recipe.finding import choose
from shoestring.training.data.batches import pinned, to_device
from shoestring.training.data.loading import Loader
from shoestring.training.data.order import DataOrder
from shoestring.training.data.sequential import sequential_batches
from tests.lab.engine.networks import Classifier
from tests.lab.engine.trained import CPU, CUDA, assert_same_bits, train


@dataclass(frozen=True)
class Pair:
    images: torch.Tensor
    names: tuple[str, ...]


class Moving:
    """Moves itself, as batches of graphs do."""

    def __init__(self, numbers):
        self.numbers = numbers

    def to(self, device):
        return Moving(self.numbers.to(device))

    def pin_memory(self):
        return Moving(self.numbers.pin_memory())


class Images:
    """Samples of random images, drawn for each anew, and their numbers."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.rand(3, 4, 5), index


class Structured:
    """A recipe whose batches are of several types."""

    def collate(self, samples):
        images, numbers = torch.stack([image for image, _ in samples]), torch.tensor([number for _, number in samples])
        return {"pair": Pair(images, ("a", "b")), "moving": Moving(numbers), "list": [numbers.double(), None]}


def contents(batch):
    return [batch["pair"].images, batch["moving"].numbers, batch["list"][0]]


def batches(device, workers, memory_format=None):
    """Return all batches of three updates, which stay where they are until the last one has been fetched."""
    order = DataOrder(samples=40, effective_batch=16, seed=0)
    loader = Loader(Structured(), Images(), order, seed=0, device=device, workers=workers, memory_format=memory_format)
    with loader:
        return [batch for update in range(3) for batch, _ in loader.microbatches(update, 4)], loader


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_batches_are_those_of_the_cpu(workers, memory_format):
    (expected, _), (actual, loader) = batches(CPU, 0), batches(CUDA, workers, memory_format)
    assert len(actual) == len(expected) == 10
    for batch, other in zip(actual, expected, strict=True):
        assert type(batch["pair"]) is Pair and batch["pair"].names == ("a", "b") and batch["list"][1] is None
        is_last = memory_format == "channels_last"
        assert batch["pair"].images.is_contiguous(memory_format=torch.channels_last) == is_last
        for tensor, same in zip(contents(batch), contents(other), strict=True):
            assert tensor.is_cuda and torch.equal(tensor.cpu(), same)
    assert loader.waiting_seconds > 0


def test_batches_of_workers_are_pinned_and_copied_asynchronously(monkeypatch):
    copied, to = [], torch.Tensor.to

    def record(tensor, *arguments, **options):
        if options.get("non_blocking"):
            copied.append(tensor.is_pinned())
        return to(tensor, *arguments, **options)

    monkeypatch.setattr(torch.Tensor, "to", record)
    batches(CUDA, 2)
    assert copied == [True] * 20  # two of the three tensors of each batch; the other moves itself
    copied.clear()
    batches(CUDA, 0)
    assert not copied


class Failing(Images):
    """A sample ends its process, or has an error."""

    def __init__(self, act):
        self._act = act

    def __getitem__(self, index):
        return self._act(index)


def kill(_):
    os.kill(os.getpid(), signal.SIGKILL)


def fail(index):
    raise RuntimeError(f"sample {index} is damaged")


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [(kill, RunError, "a data worker process died"), (fail, RuntimeError, "sample [0-9]+ is damaged")],
)
def test_errors_of_workers_come_through_pinned_memory(act, error, message):
    order = DataOrder(samples=40, effective_batch=16, seed=0)
    with Loader(Structured(), Failing(act), order, seed=0, device=CUDA, workers=2) as loader:
        with pytest.raises(error, match=message):
            list(loader.microbatches(0, 4))
        pids = loader.pids
    assert len(pids) == 2 and not any(map(psutil.pid_exists, pids))


def test_pinned_batches_have_the_same_values():
    batch = Structured().collate([(torch.rand(3, 4, 5), 1)] * 2)
    in_pinned = pinned(batch)
    for tensor, other in zip(contents(in_pinned), contents(batch), strict=True):
        assert tensor.is_pinned() and not other.is_pinned() and torch.equal(tensor, other)
    moved = to_device(in_pinned, CUDA, asynchronous=True)
    assert all(torch.equal(tensor.cpu(), other) for tensor, other in zip(contents(moved), contents(batch), strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_in_sequence_are_those_of_the_cpu(monkeypatch, workers):
    """Workers begin although fetching here would be faster."""
    monkeypatch.setattr("shoestring.training.data.sequential._START_SECONDS", 0)
    pairs = [list(sequential_batches(Images(), Structured(), 16, device, 0, workers=workers)) for device in (CUDA, CPU)]
    assert [size for _, size in pairs[0]] == [16, 16, 8]
    for (batch, _), (other, _) in zip(*pairs, strict=True):
        for tensor, same in zip(contents(batch), contents(other), strict=True):
            assert tensor.is_cuda and torch.equal(tensor.cpu(), same)
    # The second of two processes has no batch of three samples.
    assert list(sequential_batches(range(3), Structured(), 16, CUDA, 0, workers=workers, offset=1, stride=2)) == []


def test_a_small_dataset_is_on_the_gpu_and_gives_the_batches_of_the_cpu():
    loaded, _ = choose("temporal", {"size": "tiny"})
    data = loaded.data()["train"]
    order = DataOrder(samples=len(data), effective_batch=16, seed=0)
    results = []
    for device in (CUDA, CPU):
        with Loader(loaded.recipe, data, order, seed=0, device=device, workers=2 if device == CUDA else 0) as loader:
            results.append([batch for update in range(3) for batch, _ in loader.microbatches(update, 8)])
            assert not loader.pids and loader.workers == 0
    for batch, other in zip(*results, strict=True):
        for tensor, same in zip(batch, other, strict=True):
            assert tensor.is_cuda and torch.equal(tensor.cpu(), same)


def test_a_run_with_workers_has_the_bits_of_one_without(tmp_path):
    """Their number is no part of the environment that has to be the same."""
    recipe = Classifier(network="convolutional", share=0.3)
    results = [
        train(tmp_path / str(workers), recipe, {"workers": workers, "micro_batch": 2, "precision": "fp16"})
        for workers in (0, 2)
    ]
    assert_same_bits(*results)
    assert results[0].updates == results[1].updates
