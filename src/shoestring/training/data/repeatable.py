"""Whether samples can be fetched again with the same values, which exact resuming depends on.

What `fetch` seeds it can repeat. Random numbers from anywhere else, such as a generator that a sample creates for
itself or one inside a compiled library, are noticed when the same samples are fetched twice and differ.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from shoestring.base.units import seconds_text
from shoestring.recipe.microbatches import Member, flattened
from shoestring.training.data.loading import Loader

_SAMPLES = 4
_SECONDS = 4.0
"""The samples are not fetched twice if that would probably take longer, judged by one of them."""


@dataclass(frozen=True, kw_only=True)
class DataComparison:
    """The result of fetching the first samples of a run twice."""

    samples: int
    """How many were compared; 0 if they were not."""
    difference: str = ""
    """What differs; empty if nothing does."""
    skipped: str = ""
    """Why they were not compared."""

    @property
    def text(self) -> str:
        """What it means that the samples differ, for a person."""
        return (
            f"{self.difference}: the samples depend on random numbers that Shoestring does not seed, or on what "
            "earlier fetches have changed, such as a counter. This run cannot be repeated bit for bit, and a resumed "
            "run differs from one without an interruption. Draw random numbers from the global generators of torch, "
            "numpy or random, or from a generator in an attribute of the dataset, collate or the recipe: these are "
            "seeded for each sample"
        )


def compare_fetches(loader: Loader, members: Sequence[Member]) -> DataComparison:
    """Fetch the first of `members` twice with the same seeds, and compare the batches.

    Nothing is compared if a sample takes long, or if the recipe's code raises an exception: training will report it.
    """
    first, several = members[:1], members[:_SAMPLES]
    batches = loader.repeated([first, first, several, several])
    try:
        next(batches)  # which may start a process, open files and build what later samples use
        started_at = time.monotonic()
        next(batches)
        seconds = time.monotonic() - started_at
        if seconds * 2 * len(several) > _SECONDS:
            return DataComparison(samples=0, skipped=f"a sample takes {seconds_text(seconds)}")
        difference = find_difference(next(batches), next(batches), "batch")
    except Exception as error:  # noqa: BLE001  (the recipe's code may raise anything)
        return DataComparison(samples=0, skipped=f"{type(error).__name__}: {error}")
    finally:
        batches.close()
    indices = flattened(several)
    if difference is None:
        return DataComparison(samples=len(indices))
    path, row = difference
    is_one_sample = row is not None and row < len(indices) == len(several)
    place = f"sample {indices[row]} differs" if is_one_sample and row is not None else "the first samples differ"
    return DataComparison(
        samples=len(indices), difference=f"{place} (in {path}) when fetched again with the same seeds"
    )


def find_difference(a: Any, b: Any, path: str) -> tuple[str, int | None] | None:
    """Return the path of the first leaf that differs, and the first row in it that does; None if none differs.

    NaN is equal to NaN. Objects are compared by their attributes.
    """
    if type(a) is not type(b):
        return path, None
    if isinstance(a, torch.Tensor | np.ndarray | np.generic):
        return _find_in_arrays(a, b, path)
    if isinstance(a, float | complex) and a != a and b != b:
        return None
    for (suffix, own_items), (other_suffix, other) in _pairs(a, b):
        if suffix != other_suffix:
            return path, None
        if difference := find_difference(own_items, other, path + suffix):
            return difference
    if _items(a) is None and isinstance(a, str | bytes | int | float | complex | None) and a != b:
        return path, None
    return None


def _pairs(a: Any, b: Any) -> Iterator[tuple[tuple[str, Any], tuple[str, Any]]]:
    own_items, other_items = _items(a) or [], _items(b) or []
    missing = [("missing", None)] * abs(len(own_items) - len(other_items))
    if len(own_items) < len(other_items):
        own_items = [*own_items, *missing]
    elif len(other_items) < len(own_items):
        other_items = [*other_items, *missing]
    return zip(own_items, other_items, strict=True)


def _items(value: Any) -> list[tuple[str, Any]] | None:
    """Return the parts of a container or of an object with their paths; None for a leaf."""
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", getattr(value, name)) for name in value._fields]
    if isinstance(value, list | tuple):
        return [(f"[{index}]", item) for index, item in enumerate(value)]
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict) and not callable(value):
        return [(f".{name}", item) for name, item in attributes.items()]
    return None


def _find_in_arrays(a: Any, b: Any, path: str) -> tuple[str, int | None] | None:
    if isinstance(a, torch.Tensor):
        if a.layout != torch.strided or a.is_quantized:
            return None
        if a.dtype != b.dtype:
            return path, None
        a, b = (value.detach().cpu() for value in (a, b))
        a, b = (value.float() if value.dtype == torch.bfloat16 else value for value in (a, b))  # NumPy lacks bfloat16
        a, b = a.resolve_conj().resolve_neg().numpy(), b.resolve_conj().resolve_neg().numpy()
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return path, None
    if a.dtype == object:
        return None
    differs = (a != b) & ~((a != a) & (b != b))
    if not differs.any():
        return None
    return path, int(np.argwhere(differs)[0][0]) if a.ndim else None
