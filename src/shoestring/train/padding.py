"""Sequences of different lengths as one tensor, padded to the longest of their batch and not of the whole data."""

from collections.abc import Sequence

from torch import Tensor

from shoestring.errors import QuestionError


def pad_batch(sequences: Sequence[Tensor], value: float, *, multiple: int = 8) -> Tensor:
    """1-D tensors of one dtype as (samples, longest), filled up at the end with `value`.

    The longest is rounded up to a `multiple`: tensor cores take fp16 in eights, and fewer different shapes leave fewer
    gaps in memory. With a recipe's `length` the samples of a microbatch are of about the same length.

    Raises QuestionError for no sequences, and for others than 1-D tensors of one dtype.
    """
    kinds = sorted({f"{tuple(one.shape)} {one.dtype}" for one in sequences if one.ndim != 1})
    dtypes = {one.dtype for one in sequences}
    if kinds or len(dtypes) != 1:
        seen = kinds or sorted(map(str, dtypes)) or ["nothing"]
        raise QuestionError(f"cannot pad {', '.join(seen)}", hint="give 1-D tensors of one dtype, at least one")
    longest = -(-max(len(one) for one in sequences) // multiple) * multiple
    padded = sequences[0].new_full((len(sequences), longest), value)
    for row, one in zip(padded, sequences, strict=True):
        row[: len(one)] = one
    return padded
