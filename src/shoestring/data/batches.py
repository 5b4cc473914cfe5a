"""From sample numbers to a batch on the device."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import TensorDataset, default_collate

from shoestring.data.generators import Generators
from shoestring.data.seeding import derive, seed_host
from shoestring.recipe.parts import Parts
from shoestring.techniques import trees


class Draws:
    """Whether the samples of a dataset draw random numbers; None while nobody has looked."""

    seen: bool | None = None


def fetch(
    dataset: Any,
    collate: Callable[[Any], Any],
    indices: Sequence[int],
    *,
    seed: int,
    epoch: int,
    draws: Draws | None = None,
) -> Any:
    """The samples `indices` of a map-style dataset as one batch, on the CPU unless the dataset lies elsewhere.

    A sample may be augmented at random: it is fetched under a seed of (seed, epoch, index), so that it is the same
    whatever microbatch, session or process it falls into. What `collate` draws follows on the last sample's. A dataset
    with torch's `__getitems__` gives many samples at once; neither it nor `collate` must draw random numbers then.

    Seeding takes longer than fetching a sample that lies in memory, so `draws`, kept from batch to batch, learns from
    the first one whether it is needed. Where it is not, later ones go without, and if then somebody does draw, that
    batch is fetched again. A sample that only looks at a generator's state, and draws nothing, goes unnoticed.
    """
    with one_thread():
        if type(dataset) is TensorDataset and collate is default_collate:
            # The same rows, taken at once instead of one by one and stacked. Nothing in it could draw.
            rows = torch.tensor(list(indices))
            return [tensor.index_select(0, rows.to(tensor.device)) for tensor in dataset.tensors]
        if callable(getattr(dataset, "__getitems__", None)):
            return collate(dataset.__getitems__(list(indices)))
        draws, before = draws or Draws(), Generators()
        if draws.seen is False:
            batch = collate([dataset[index] for index in indices])
            if before.untouched():
                return batch
            draws.seen = True
        try:
            samples = []
            for index in indices:
                seed_host(derive(seed, "sample", epoch, index))
                seeded = None if draws.seen else Generators()
                samples.append(dataset[index])
                draws.seen = draws.seen or (seeded is not None and not seeded.untouched())
            return collate(samples)
        finally:
            before.restore()


@contextmanager
def one_thread() -> Iterator[None]:
    """Within it torch computes in one thread, as it must in a worker process: a sum over several rounds differently."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def collate_of(recipe: object) -> Callable[[Any], Any]:
    """The recipe's own way to make a batch of samples, or torch's."""
    return Parts.of(recipe).collate or default_collate


def to_device(batch: Any, device: torch.device) -> Any:
    """`batch` with every tensor on `device`; containers that move themselves (transformers' BatchEncoding) do.

    A copy to a GPU is not waited for where it comes from pinned memory; from other memory it cannot be otherwise.
    """
    if isinstance(batch, torch.Tensor):
        return _moved(batch, device)
    if hasattr(batch, "to"):
        return batch.to(device)
    # Most batches are one of these; torch's own way, which knows all others, takes ten times as long.
    if type(batch) in (tuple, list):
        return type(batch)(to_device(item, device) for item in batch)
    if type(batch) is dict:
        return {key: to_device(item, device) for key, item in batch.items()}
    if batch is None or isinstance(batch, str | bytes | int | float):
        return batch
    return trees.mapped(lambda leaf: _moved(leaf, device), batch)


def _moved(leaf: Any, device: torch.device) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.to(device, non_blocking=device.type == "cuda" and leaf.device.type == "cpu" and leaf.is_pinned())
    return leaf.to(device) if hasattr(leaf, "to") else leaf
