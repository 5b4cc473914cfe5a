"""Sequences of different lengths as one tensor, padded to the longest of their batch and not of the whole data."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from shoestring.errors import UsageError


def pad_batch(samples: Sequence[Any], value: Any, *, multiple: int = 8) -> Any:
    """Samples as a batch, what is a sequence in them filled up at its end. A recipe's `collate`, with its `length`::

        def collate(self, samples):
            return pad_batch(samples, {"input_ids": 0, "labels": -100})

    A sample is a sequence, or a dict or tuple of fields. `value` fills: a number for the one, a dict (by name) or a
    tuple (None: this field is no sequence) of numbers for the others; a field without one is batched as torch does.
    Sequences are tensors (length, ...) of one dtype that differ in length alone, or lists of numbers.

    The longest is rounded up to a `multiple`: tensor cores take fp16 in eights, and fewer different shapes leave fewer
    gaps in memory. With `length` the samples of a microbatch are about as long, and which samples an update has stays
    as it is; its loss should then be a sum over what is not padding, with its weight.

    Raises UsageError for no samples, and for sequences that cannot be one tensor.
    """
    if isinstance(value, Mapping):
        missing = value.keys() - (samples[0].keys() if samples else ())
        if missing:
            raise UsageError(f"cannot pad {', '.join(sorted(missing))}: the samples do not have it")
        return {name: _field([one[name] for one in samples], value.get(name), multiple) for name in samples[0]}
    if isinstance(value, tuple):
        fields = zip(*samples, strict=True)
        return tuple(_field(field, fill, multiple) for field, fill in zip(fields, value, strict=True))
    return _field(samples, value, multiple)


def _field(sequences: Sequence[Any], value: float | None, multiple: int) -> Any:
    """One field of all samples: (samples, longest, ...), or torch's batch of it where it is not padded."""
    if value is None:
        return default_collate(list(sequences))
    tensors: list[Tensor] = [torch.as_tensor(one) for one in sequences]
    kinds = {(one.dtype, one.ndim and one.shape[1:]) for one in tensors}
    if len(kinds) != 1 or not tensors[0].ndim:
        seen = ", ".join(sorted({f"{tuple(one.shape)} {one.dtype}" for one in tensors})[:5])
        raise UsageError(
            f"cannot pad {seen or 'nothing'}", hint="give sequences of one dtype that differ in length alone"
        )
    longest = -(-max(map(len, tensors)) // multiple) * multiple
    padded = tensors[0].new_full((len(tensors), longest, *tensors[0].shape[1:]), value)
    for row, one in zip(padded, tensors, strict=True):
        row[: len(one)] = one
    return padded
