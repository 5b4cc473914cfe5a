"""Sums in a fixed order by indices on a GPU, for which the indices are sorted.

`index_put_` sorts them if it adds up, and in deterministic mode always (`aten/src/ATen/native/cuda/Indexing.cu:
index_put_with_sort_kernel`). In deterministic mode `scatter`, `scatter_add` and so the backward pass of `gather`
(`TensorAdvancedIndexing.cpp: _scatter_via_index_put`), `index_add` and `index_copy` are `index_put_` as well. The steps
are those that PyTorch 2.10's allocator was asked for on a simulated T4, except blocks of up to 8 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from shoestring.planning.trace import bounds

_INDEX_BYTES, _ALIGNMENT = 8, 256
_FEW = 2304
"""Up to so many pairs, the sort asks for 1 byte."""
_BLOCK, _BLOCK_BYTES, _PASS_BYTES = 2816, 1024, 2048
"""What the sort's memory grew by on a simulated T4: bytes for so many pairs that are begun, and for each pass of 8
bits, as 256 counts of 4 and of 8 bytes would be."""


class Steps(list[int]):
    """Steps of a kernel's own memory (`scratch.Scratch`), of which each allocation has a number."""

    def __init__(self, first: int = 0) -> None:
        """`first` is the number of the first allocation."""
        super().__init__()
        self._next = first

    def allocate(self, size: int) -> int:
        """Allocate `size` bytes and return the number of the allocation."""
        self.append(size)
        self._next += 1
        return self._next - 1

    def free(self, *numbers: int) -> None:
        """Free allocations by their numbers."""
        self.extend(~number for number in numbers)

    def use(self, size: int) -> None:
        """Allocate `size` bytes and free them."""
        self.free(self.allocate(size))


def index_put(
    values: Tensor, indices: Sequence[Tensor | None], source: Tensor, accumulate: bool = False, *_: object
) -> tuple[int, ...]:
    """Return the steps of `values.index_put_(indices, source, accumulate)`."""
    steps = Steps()
    tensors = [index for index in indices if index is not None]
    masks = bounds.scratch_bytes(torch.ops.aten.index_put.default, (None, indices))
    positions = [steps.allocate(masks)] if masks else []
    # Of a scalar, the order of writing does not matter.
    is_sorted = accumulate or (torch.are_deterministic_algorithms_enabled() and source.numel() > 1)
    if not tensors or not is_sorted:
        return tuple(steps)
    dims, shapes, is_contiguous = list[int](), list[Sequence[int]](), list[bool]()
    for index in indices:
        if index is None:
            dims.append(1)
            continue
        number = index.dim() if bounds.is_mask(index) else 1
        dims.append(number)
        shapes += [(index.numel(),) if bounds.is_mask(index) else index.shape] * number
        is_contiguous += [bounds.is_mask(index) or index.is_contiguous()] * number
    count = math.prod(torch.broadcast_shapes(*shapes))
    rows = _rows(values, indices, dims)
    whole = [its and math.prod(shape) == count for its, shape in zip(is_contiguous, shapes, strict=True)]
    slices = values.numel() // max(1, rows)
    is_whole = source.is_contiguous() and source.numel() == count * slices
    copy = 0 if is_whole else count * slices * values.element_size()
    _sort_and_sum(steps, whole, count, rows, copy, positions)
    return tuple(steps)


def _rows(values: Tensor, indices: Sequence[Tensor | None], dims: Sequence[int]) -> int:
    """Return the number of positions that the indices distinguish: the product of the dimensions that they index."""
    rows, place = 1, 0
    for index, number in zip(indices, dims, strict=True):
        rows *= 1 if index is None else math.prod(values.shape[place : place + number])
        place += number
    return rows


def scatter(values: Tensor, dim: int, indices: Tensor, source: Tensor, *_: object) -> tuple[int, ...]:
    """Return the steps of `values.scatter_(dim, indices, source)`, also of `scatter_add_`, in deterministic mode."""
    if not torch.are_deterministic_algorithms_enabled() or not indices.numel():
        return ()
    dim %= max(1, values.dim())
    source = source.as_strided(indices.shape, source.stride())
    strides = [stride for number, stride in enumerate(indices.stride()) if number != dim]
    if not any(strides):  # the same indices for all positions in the other dimensions
        row = indices.as_strided((indices.shape[dim],), (indices.stride(dim),)) if indices.dim() else indices
        return index_put(values, [*[None] * dim, row], source, True)
    steps = Steps()
    lengths = [indices.shape[number] for number in range(values.dim()) if number != dim]
    ranges = [steps.allocate(length * _INDEX_BYTES) for length in lengths]
    count = indices.numel()
    # The positions in the other dimensions are expanded to the shape of the indices.
    whole = [
        indices.is_contiguous() if number == dim else indices.shape[number] == count for number in range(values.dim())
    ]
    copy = 0 if source.is_contiguous() else count * values.element_size()
    _sort_and_sum(steps, whole, count, values.numel(), copy, [])
    steps.free(*ranges)
    return tuple(steps)


def index_add(values: Tensor, dim: int, index: Tensor, source: Tensor, *_: object) -> tuple[int, ...]:
    """Return the steps of `values.index_add_(dim, index, source)` in deterministic mode."""
    if not torch.are_deterministic_algorithms_enabled():
        return ()
    product = Steps()
    number = product.allocate(source.numel() * source.element_size())
    steps = index_put(values, [*[None] * (dim % max(1, values.dim())), index], source, True)
    return (*product, *(step if step >= 0 else step - 1 for step in steps), ~number)


def index_copy(values: Tensor, dim: int, index: Tensor, source: Tensor, *_: object) -> tuple[int, ...]:
    """Return the steps of `values.index_copy_(dim, index, source)` in deterministic mode."""
    if not torch.are_deterministic_algorithms_enabled():
        return ()
    return index_put(values, [*[None] * (dim % max(1, values.dim())), index], source)


def _sort_and_sum(
    steps: Steps, whole: Sequence[bool], count: int, rows: int, copy: int, positions: Sequence[int]
) -> None:
    """Add the steps for `count` indices of each dimension, which are `whole` if they are contiguous when expanded.

    `copy`: the bytes of a copy of the source. `positions`: allocations that are freed with the indices of dimensions.
    """
    size = count * _INDEX_BYTES
    linear = None
    for is_whole in whole:
        if not is_whole:  # the largest and the smallest index are those of copies
            steps.use(size)
            steps.use(size)
        wrapped, product = steps.allocate(size), steps.allocate(size)
        steps.free(wrapped)
        if linear is None:
            linear = product
        else:
            steps.free(product)
    steps.free(*positions)
    copies = [steps.allocate(copy)] if copy else []
    indices, order = steps.allocate(size), steps.allocate(size)
    sort_pairs(steps, count, passes(rows))
    steps.free(order, indices, *copies)
    if linear is not None:
        steps.free(linear)


def sort_pairs(steps: Steps, count: int, passes: int) -> None:
    """Add the steps that sort indices together with their positions (`radix_sort_pairs` in `aten/src/ATen/cuda`).

    These are the positions, and the memory of CUB's sort: for more than a few, another copy of both and what depends on
    the numbers of passes and of blocks.
    """
    places = steps.allocate(count * _INDEX_BYTES)
    copies = 2 * aligned(count * _INDEX_BYTES)
    counts = passes * _PASS_BYTES + -(-count // _BLOCK) * _BLOCK_BYTES
    steps.use(1 if count <= _FEW else copies + counts + 2 * _ALIGNMENT - 1)
    steps.free(places)


def passes(largest: int) -> int:
    """Return the passes of a sort by numbers up to `largest`, with 8 bits each."""
    return -(-largest.bit_length() // 8)


def aligned(size: int) -> int:
    """Return `size` rounded up to what CUB aligns its memory to."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT
