"""Padding sequences of different lengths into one tensor, to the longest of their batch rather than of all data."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from shoestring.base.errors import UsageError


def pad_batch(samples: Sequence[Any], value: Any, *, multiple: int = 8) -> Any:
    """Collate samples into a batch, with sequences padded at their end; for a recipe's `collate`, with its `length`::

        def collate(self, samples):
            return pad_batch(samples, {"input_ids": 0, "labels": -100})

    A sample is a sequence, or a dict or tuple of fields. `value` is the padding: a number for a sequence, a dict (by
    name) or a tuple of numbers for fields; a field without a number, or with None, is collated as torch does. Sequences
    are tensors (length, ...) of one dtype that differ only in length, or lists of numbers.

    The padded length is rounded up to a `multiple`: tensor cores process fp16 in multiples of eight, and fewer
    different shapes fragment memory less. With `length`, the samples of a microbatch have similar lengths, and the
    samples of an update do not change; its loss should then be a sum over the values that are not padding, with its
    weight.

    Raises UsageError for an empty list of samples, and for sequences that cannot form one tensor.
    """
    if isinstance(value, Mapping):
        missing = value.keys() - (samples[0].keys() if samples else ())
        if missing:
            raise UsageError(f"cannot pad {', '.join(sorted(missing))}: the samples have no such field")
        return {
            name: _collate_field([sample[name] for sample in samples], value.get(name), multiple) for name in samples[0]
        }
    if isinstance(value, tuple):
        fields = zip(*samples, strict=True)
        return tuple(_collate_field(field, fill, multiple) for field, fill in zip(fields, value, strict=True))
    return _collate_field(samples, value, multiple)


def _collate_field(sequences: Sequence[Any], value: float | None, multiple: int) -> Any:
    """Return one field of all samples: (samples, padded length, ...), or collated as torch does without a `value`."""
    if value is None:
        return default_collate(list(sequences))
    tensors: list[Tensor] = [torch.as_tensor(sequence) for sequence in sequences]
    kinds = {(tensor.dtype, tensor.ndim and tensor.shape[1:]) for tensor in tensors}
    if len(kinds) != 1 or not tensors[0].ndim:
        shapes = ", ".join(sorted({f"{tuple(tensor.shape)} {tensor.dtype}" for tensor in tensors})[:5])
        raise UsageError(
            f"cannot pad {shapes or 'an empty list of samples'}",
            hint="pass sequences of one dtype that differ only in length",
        )
    longest = -(-max(map(len, tensors)) // multiple) * multiple
    padded = tensors[0].new_full((len(tensors), longest, *tensors[0].shape[1:]), value)
    for row, tensor in zip(padded, tensors, strict=True):
        row[: len(tensor)] = tensor
    return padded
