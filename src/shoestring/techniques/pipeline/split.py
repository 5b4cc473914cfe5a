"""Which blocks of a model are on the first of two GPUs: a function of numbers, without torch."""

from collections.abc import Sequence
from itertools import accumulate


def first_blocks(sizes: Sequence[int], before: int = 0, after: int = 0) -> int:
    """Return how many of at least two blocks are on the first GPU, so that the larger part is as small as possible.

    `sizes` are the bytes of the blocks in their order; `before` and `after` are those of the rest of the model on the
    first and on the second GPU. Each part has at least one block. Of equal divisions the first part is the smaller one,
    because it has the activations of two microbatches.
    """
    if len(sizes) < 2:
        raise ValueError(f"{len(sizes)} blocks cannot be divided")
    total = sum(sizes)
    larger = [max(before + own, after + total - own) for own in accumulate(sizes[:-1])]
    return larger.index(min(larger)) + 1
