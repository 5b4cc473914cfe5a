"""Fetching samples by index, collating them into a batch, and moving the batch to the device."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import TensorDataset, default_collate

from shoestring.data.generators import GeneratorStates
from shoestring.data.seeding import derive, seed_host
from shoestring.recipe.parts import Parts
from shoestring.techniques import trees


class SampleRandomness:
    """Whether the samples of a dataset draw random numbers, as detected by `fetch`."""

    detected: bool | None = None
    """None before the first sample."""


def fetch(
    dataset: Any,
    collate: Callable[[Any], Any],
    indices: Sequence[int],
    *,
    seed: int,
    epoch: int,
    randomness: SampleRandomness | None = None,
) -> Any:
    """Fetch the samples `indices` of a map-style dataset as one batch, on the CPU or on the dataset's own device.

    A sample may be augmented at random: it is fetched under a seed of (seed, epoch, index), so it does not depend on
    its microbatch, session or process. Random numbers that `collate` draws continue from those of the last sample. A
    dataset with torch's `__getitems__` returns many samples at once; then neither it nor `collate` may draw random
    numbers.

    Seeding takes longer than fetching a sample from memory. So the first batch records in `randomness`, which is shared
    by all batches, whether samples draw. If they do not, later samples are fetched without seeding, and a batch in
    which one draws all the same is fetched again. Reading a generator's state without drawing is not detected.
    """
    with single_thread():
        if type(dataset) is TensorDataset and collate is default_collate:
            # Index all rows at once instead of stacking single ones. TensorDataset draws no random numbers.
            rows = torch.tensor(list(indices))
            return [tensor.index_select(0, rows.to(tensor.device)) for tensor in dataset.tensors]
        if callable(getattr(dataset, "__getitems__", None)):
            return collate(dataset.__getitems__(list(indices)))
        randomness, initial_states = randomness or SampleRandomness(), GeneratorStates()
        if randomness.detected is False:
            batch = collate([dataset[index] for index in indices])
            if initial_states.unchanged():
                return batch
            randomness.detected = True
        try:
            samples = []
            for index in indices:
                seed_host(derive(seed, "sample", epoch, index))
                seeded_states = None if randomness.detected else GeneratorStates()
                samples.append(dataset[index])
                randomness.detected = randomness.detected or (
                    seeded_states is not None and not seeded_states.unchanged()
                )
            return collate(samples)
        finally:
            initial_states.restore()


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
        states = GeneratorStates()
        batch = self._collate(samples)
        return batch, not states.unchanged()


def collate_function(recipe: object) -> Callable[[Any], Any]:
    """Return the recipe's `collate`, or torch's default."""
    return Parts.from_recipe(recipe).collate or default_collate


def to_device(batch: Any, device: torch.device) -> Any:
    """Move every tensor of `batch` to `device`; objects with their own `to` (transformers' BatchEncoding) use it.

    Copies from pinned memory to a GPU are asynchronous; those from other memory cannot be.
    """
    if isinstance(batch, torch.Tensor):
        return _move(batch, device)
    if hasattr(batch, "to"):
        return batch.to(device)
    # Most batches are one of these; torch's own traversal, which supports all containers, takes ten times as long.
    if type(batch) in (tuple, list):
        return type(batch)(to_device(item, device) for item in batch)
    if type(batch) is dict:
        return {key: to_device(item, device) for key, item in batch.items()}
    if batch is None or isinstance(batch, str | bytes | int | float):
        return batch
    return trees.mapped(lambda leaf: _move(leaf, device), batch)


def _move(leaf: Any, device: torch.device) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.to(device, non_blocking=device.type == "cuda" and leaf.device.type == "cpu" and leaf.is_pinned())
    return leaf.to(device) if hasattr(leaf, "to") else leaf
