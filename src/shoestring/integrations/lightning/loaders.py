"""The datasets of a LightningModule's or LightningDataModule's dataloaders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from shoestring.base.errors import UsageError
from shoestring.recipe.lightning import overrides

STAGES = {"train": "fit", "validation": "fit", "test": "test", "predict": "predict"}
"""The parts of the data with the stage that `setup` is called for."""

METHODS = {part: f"{'val' if part == 'validation' else part}_dataloader" for part in STAGES}
"""The method with the dataloader of each part."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the data."""

    dataset: Any
    collate: Callable[[Any], Any]
    batch_size: int
    notes: tuple[str, ...] = ()


class Sample(NamedTuple):
    """A sample of an evaluation or of predictions, which knows its part: each part has its own collate function."""

    part: str
    value: Any


class PartBatch(NamedTuple):
    """A batch of such samples."""

    part: str
    value: Any


class Samples:
    """A dataset whose samples know their part. They are fetched one by one, each under a seed of its own."""

    def __init__(self, dataset: Any, part: str) -> None:
        self._dataset, self._part = dataset, part

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Sample:
        return Sample(self._part, self._dataset[index])


def defines(source: Any, part: str) -> bool:
    """Return whether a LightningModule or LightningDataModule has a dataloader for the part."""
    return overrides(type(source), METHODS[part])


def read(source: Any, part: str) -> Part:
    """Return a part of the data of `source`, whose `setup` has been called.

    Raises UsageError for a dataloader whose samples are not a function of the update's number.
    """
    name = f"{type(source).__name__}.{METHODS[part]}"
    loader, notes = getattr(source, METHODS[part])(), []
    if isinstance(loader, list | tuple) and part != "train" and loader:
        if len(loader) > 1:
            notes.append(f"{name} returned {len(loader)} dataloaders: only the first one is used")
        loader = loader[0]
    if not all(hasattr(loader, attribute) for attribute in ("dataset", "collate_fn", "sampler", "batch_sampler")):
        raise UsageError(
            f"{name} returned a {type(loader).__name__}",
            problems=["the samples are taken from a DataLoader's dataset, in an order of Shoestring's own"],
            hint="return one torch.utils.data.DataLoader",
        )
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        raise UsageError(
            f"the dataset of {name} is a {type(loader.dataset).__name__}, which can only be read sequentially: a "
            "resumed run would have to read it again from its start",
            hint="use a dataset with __len__ and __getitem__; for pieces with known sample counts write a recipe with "
            "shoestring.pieces.Shards (docs/guides/data.md)",
        )
    if loader.batch_size is None:
        kind = type(loader.batch_sampler).__name__ if loader.batch_sampler else "batch_size=None"
        raise UsageError(
            f"{name} makes its batches by {kind}", hint="give the DataLoader a dataset of samples and a batch_size"
        )
    if part == "train":
        notes += _order_notes(loader, name)
    return Part(dataset=loader.dataset, collate=loader.collate_fn, batch_size=loader.batch_size, notes=tuple(notes))


def _order_notes(loader: Any, name: str) -> list[str]:
    """Return notes on the order of the samples. Raises UsageError for an order other than a permutation."""
    sampler = loader.sampler
    is_plain = type(sampler) in (RandomSampler, SequentialSampler) and type(loader.batch_sampler) is BatchSampler
    if not is_plain or getattr(sampler, "replacement", False) or getattr(sampler, "_num_samples", None):
        raise UsageError(
            f"the order of {name} is that of a {type(sampler).__name__}",
            problems=["each epoch has every sample once, in an order that is a function of the seed and the epoch"],
            hint="leave out the sampler; put weights into the loss instead",
        )
    if type(sampler) is SequentialSampler:
        return [f"{name} does not shuffle, but training does: the order is a function of the seed"]
    return []


def repeated(dataset: Any, size: int, samples: int) -> list[Any]:
    """Return `size` samples, which are the first `samples` of the dataset, repeated."""
    first = [dataset[index] for index in range(min(samples, size, len(dataset)))]
    return [first[index % len(first)] for index in range(size)]
