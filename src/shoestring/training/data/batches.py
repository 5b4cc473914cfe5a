"""Fetching samples by index, collating them into a batch, and moving the batch to the device."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import TensorDataset, default_collate

from shoestring.base.settings import MemoryFormat
from shoestring.recipe.microbatches import Member, flattened
from shoestring.recipe.parts import Parts
from shoestring.techniques import memory_format, nested
from shoestring.training.data.own_generators import AllStates, LazyGenerators, OwnGenerators
from shoestring.training.data.seeding import derive, seed_host


class SampleRandomness(LazyGenerators):
    """Which generators the samples of a dataset may draw from, and whether they do, which `fetch` finds out."""

    detected: bool | None = None
    """Whether samples draw random numbers; None before the first sample."""


def fetch(
    dataset: Any,
    collate: Callable[[Any], Any],
    members: Sequence[Member],
    *,
    seed: int,
    epoch: int,
    randomness: SampleRandomness | None = None,
) -> Any:
    """Fetch samples of a map-style dataset as one batch, on the CPU or on the dataset's own device.

    `members` are indices of samples, or packed rows of them, each of which `collate` gets as a list of samples.

    A sample may be augmented at random: it is fetched under a seed of (seed, epoch, index), so it does not depend on
    its microbatch, session or process. Generators that the dataset or `collate` hold are seeded as well
    (`own_generators.py`). Random numbers that `collate` draws continue from those of the last sample. A dataset with
    torch's `__getitems__`, such as torch's `Subset`, returns many samples at once; if it or `collate` draws random
    numbers, the samples are fetched one by one instead.

    Seeding takes longer than fetching a sample from memory. So the first batch records in `randomness`, which is shared
    by all batches, whether samples draw. If they do not, later samples are fetched without seeding, and a batch in
    which one draws all the same is fetched again. Reading a generator's state without drawing is not detected.
    """
    indices = flattened(members)
    with single_thread():
        if type(dataset) is TensorDataset and collate is default_collate:
            # Index all rows at once instead of stacking single ones. TensorDataset draws no random numbers.
            rows = torch.tensor(indices)
            return [tensor.index_select(0, rows.to(tensor.device)) for tensor in dataset.tensors]
        randomness = randomness or SampleRandomness()
        batch = _fetch(dataset, collate, members, indices, seed, epoch, randomness)
        if randomness.has_new(dataset=dataset, collate=collate):
            batch = _fetch(dataset, collate, members, indices, seed, epoch, randomness)
        return batch


def _fetch(
    dataset: Any,
    collate: Callable[[Any], Any],
    members: Sequence[Member],
    indices: Sequence[int],
    seed: int,
    epoch: int,
    randomness: SampleRandomness,
) -> Any:
    own = randomness.search(dataset=dataset, collate=collate)
    initial_states, fetch_all = AllStates(own), getattr(dataset, "__getitems__", None)
    if randomness.detected is False or (callable(fetch_all) and not randomness.detected):
        samples = fetch_all(indices) if callable(fetch_all) else [dataset[index] for index in indices]
        batch = collate(_in_rows(samples, members))
        if initial_states.unchanged():
            return batch
        randomness.detected = True
    try:
        samples = []
        for index in indices:
            value = derive(seed, "sample", epoch, index)
            seed_host(value)
            own.seed(value)
            seeded_states = None if randomness.detected else AllStates(own)
            samples.append(dataset[index])
            randomness.detected = randomness.detected or (seeded_states is not None and not seeded_states.unchanged())
        return collate(_in_rows(samples, members))
    finally:
        initial_states.restore()


def _in_rows(samples: Any, members: Sequence[Member]) -> Any:
    """Return the samples, those of a packed row in a list of their own."""
    if not any(isinstance(member, tuple) for member in members):
        return samples
    iterator = iter(samples)
    return [[next(iterator) for _ in flattened([member])] for member in members]


@contextmanager
def single_thread() -> Iterator[None]:
    """Run torch with one thread, as a worker process does: a sum over several threads is rounded differently."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class WatchedCollate:
    """A collate function that also returns whether it has drawn random numbers."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> tuple[Any, bool]:
        states = AllStates(OwnGenerators(collate=self._collate))
        batch = self._collate(samples)
        return batch, not states.unchanged()


class CollateParts:
    """A collate function that makes a batch of each of several selections of the same samples.

    Each begins with the same samples and the same states of the generators, whatever the one before has changed.
    """

    def __init__(self, collate: Callable[[Any], Any], parts: Sequence[Sequence[Member]]) -> None:
        """The members of a part are positions of samples."""
        self._collate, self._parts = WatchedCollate(collate), parts

    def __call__(self, samples: Any) -> list[tuple[Any, bool]]:
        states, batches = AllStates(OwnGenerators(collate=self._collate)), []
        for part in self._parts:
            states.restore()
            selected = _copies([samples[position] for position in flattened(part)])
            batches.append(self._collate(_in_rows(selected, part)))
        return batches


def _copies(samples: list[Any]) -> list[Any]:
    """Return copies, because a collate function may change its samples; the samples if they cannot be copied."""
    try:
        return copy.deepcopy(samples)
    except Exception:  # noqa: BLE001  (objects such as open files)
        return samples


def collate_function(recipe: object) -> Callable[[Any], Any]:
    """Return the recipe's `collate`, or torch's default."""
    return Parts.from_recipe(recipe).data.collate or default_collate


def evaluation_collate_function(recipe: object) -> Callable[[Any], Any]:
    """Return the recipe's `evaluation_collate`, or its `collate`."""
    return Parts.from_recipe(recipe).evaluation.evaluation_collate or collate_function(recipe)


def to_device(
    batch: Any, device: torch.device, format_: MemoryFormat | None = None, *, asynchronous: bool = False
) -> Any:
    """Return the batch with its tensors on `device`; objects with their own `to` (PyTorch Geometric's Batch) use it.

    Images get the memory format `format_` there, except those in such objects. With `asynchronous`, copies from pinned
    memory to a GPU may still be in progress on return: nothing may write to the batch afterwards, as a `collate` that
    fills the same tensors again would.

    Raises UsageError for an object whose tensors cannot be moved.
    """
    asynchronous = asynchronous and device.type == "cuda"

    def move(tensor: torch.Tensor) -> torch.Tensor:
        moved = tensor.to(device, non_blocking=asynchronous and tensor.device.type == "cpu" and tensor.is_pinned())
        return memory_format.converted(moved, format_)

    def move_object(value: Any) -> Any:
        moved = value.to(device)
        return value if moved is None else moved  # None: it has moved in place

    return nested.replaced(batch, move, move_object)


def pinned(batch: Any) -> Any:
    """Return the batch with its tensors in pinned memory."""

    def pin_object(value: Any) -> Any:
        return value.pin_memory() if hasattr(value, "pin_memory") else nested.with_children(value, pinned)

    return nested.replaced(batch, lambda tensor: tensor.pin_memory(), pin_object)
