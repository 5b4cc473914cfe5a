"""Sums and other reductions, as CUDA divides them among blocks of threads.

A reduction of many numbers to few results is divided among several blocks for each result, which exchange partial
results in a buffer and count themselves in semaphores (`gpu_reduce_kernel` in `aten/src/ATen/native/cuda/Reduce.cuh`,
torch 2.10 to 2.13). How many blocks depends on the GPU's multiprocessors, so a trace has what the number follows from,
and `estimate/kernel_buffers.py` computes the bytes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoestring.planning.trace.record import Reduction

_ATEN: Any = torch.ops.aten

_THREADS = 512
_WARP = 32
_VECTOR = 4
"""Elements that a thread loads at once."""
_LEAST_INPUTS = 128
"""The inputs of a result from which on contiguous ones are loaded as vectors."""
_MOST_VALUES = 256
"""max_values_per_thread."""
_MOST_BYTES = 2**31 - 1
"""Larger inputs are divided until 32 bits address them (`TensorIterator::with_32bit_indexing`)."""

_WELFORD_BYTES, _PAIR_BYTES = 16, 16
"""The mean, the sum of squares and two counts of a variance; a value with its position."""

_OPERATORS: dict[str, tuple[int | None, int | None]] = {
    "aten::sum": (None, None),
    "aten::sum.dim_IntList": (1, None),
    "aten::mean": (None, None),
    "aten::mean.dim": (1, None),
    "aten::nansum": (1, None),
    "aten::prod": (None, None),
    "aten::prod.dim_int": (1, None),
    "aten::linalg_vector_norm": (2, None),
    "aten::amax": (1, 0),
    "aten::amin": (1, 0),
    "aten::max": (None, 0),
    "aten::min": (None, 0),
    "aten::any": (None, 1),
    "aten::any.dim": (1, 1),
    "aten::any.dims": (1, 1),
    "aten::all": (None, 1),
    "aten::all.dim": (1, 1),
    "aten::all.dims": (1, 1),
    "aten::max.dim": (1, _PAIR_BYTES),
    "aten::min.dim": (1, _PAIR_BYTES),
    "aten::argmax": (1, _PAIR_BYTES),
    "aten::argmin": (1, _PAIR_BYTES),
    "aten::std.correction": (1, _WELFORD_BYTES),
    "aten::var.correction": (1, _WELFORD_BYTES),
    "aten::std_mean.correction": (1, _WELFORD_BYTES),
    "aten::var_mean.correction": (1, _WELFORD_BYTES),
}
"""The index of the argument with the dimensions, None for all; and the bytes of a partial result: None for those of
fp32 or wider sums, 0 for those of an input."""


class _Dimension(NamedTuple):
    size: int
    stride: int
    output_stride: int
    """0 if it is reduced."""


def reduction(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Reduction | None:
    """Return what the buffers of the operator's reduction follow from; None if it has none."""
    name = func.name()
    if name in _WITH_MEAN:
        # The mean of the losses of all elements.
        values, mode = args[0], _WITH_MEAN[name]
        reduces = (args[mode] if mode < len(args) else kwargs.get("reduction", 1)) != 0
        return of_tensor(values, None, None) if reduces else None
    if name == "aten::convolution_backward":
        return _bias_reduction(args)
    if name not in _OPERATORS:
        return None
    index, partial = _OPERATORS[name]
    dims = None if index is None else args[index] if index < len(args) else kwargs.get("dim")
    return of_tensor(args[0], dims, partial)


_WITH_MEAN = {
    "aten::mse_loss": 2,
    "aten::smooth_l1_loss": 2,
    "aten::huber_loss": 2,
    "aten::binary_cross_entropy_with_logits": 4,
}


def _bias_reduction(args: tuple[Any, ...]) -> Reduction | None:
    """Return that of a convolution's bias, which is a sum of the result's gradient."""
    gradient, mask = args[0], args[-1]
    return of_tensor(gradient, [number for number in range(gradient.dim()) if number != 1], None) if mask[2] else None


def of_tensor(values: Tensor, dims: Any, partial: int | None) -> Reduction | None:
    """Return what the buffers of a reduction of a tensor's dimensions follow from (`setReduceConfig`)."""
    if not values.dim() or not values.numel():
        return None
    dims = [dims] if isinstance(dims, int) else list(dims or range(values.dim()))
    reduced = {dim % values.dim() for dim in dims}
    size = 8 if not values.is_floating_point() and partial is None else values.element_size()
    iterated = _halved(_coalesced(_dimensions(values, reduced)), size)
    partial_bytes = {None: max(4, size), 0: size}.get(partial, partial)
    assert partial_bytes is not None
    return _configured(iterated, partial_bytes, int(values.storage_offset()))


def _dimensions(values: Tensor, reduced: set[int]) -> list[_Dimension]:
    """Return the dimensions with the strides of both tensors, the result being contiguous."""
    dimensions, output_stride = [], 1
    for number in reversed(range(values.dim())):
        size = values.shape[number]
        is_reduced = number in reduced
        dimensions.append(_Dimension(size, values.stride(number), 0 if is_reduced else output_stride))
        output_stride *= 1 if is_reduced else size
    return _reordered(dimensions)


def _reordered(dimensions: list[_Dimension]) -> list[_Dimension]:
    """Return them with reduced ones first, then by stride (`TensorIteratorBase::reorder_dimensions`)."""
    ordered = list(dimensions)
    for end in range(1, len(ordered)):
        place = end
        for other in range(end - 1, -1, -1):
            order = _order(ordered[other], ordered[place])
            if order > 0:
                ordered[other], ordered[place] = ordered[place], ordered[other]
                place = other
            elif order < 0:
                break
    return ordered


def _order(first: _Dimension, second: _Dimension) -> int:
    """Return 1 if the two have to be swapped, -1 if not, 0 if that is undecided."""
    if (first.output_stride == 0) != (second.output_stride == 0):
        return 1 if second.output_stride == 0 else -1
    for a, b in ((first.output_stride, second.output_stride), (first.stride, second.stride)):
        if a == 0 or b == 0:
            continue
        if a != b:
            return -1 if a < b else 1
        if first.size > second.size:
            return 1
    return 0


def _coalesced(dimensions: list[_Dimension]) -> list[_Dimension]:
    """Return them with those merged that are contiguous in both tensors (`coalesce_dimensions`)."""
    merged = [dimensions[0]]
    for new in dimensions[1:]:
        last = merged[-1]
        if last.size == 1:
            merged[-1] = new
        elif new.size == 1:
            continue
        elif (last.size * last.stride, last.size * last.output_stride) == (new.stride, new.output_stride):
            merged[-1] = last._replace(size=last.size * new.size)
        else:
            merged.append(new)
    return merged


def _halved(dimensions: list[_Dimension], size: int) -> list[_Dimension]:
    """Return the dimensions of the largest part that is reduced at once."""
    while sum((d.size - 1) * d.stride for d in dimensions) * size >= _MOST_BYTES:
        longest = max(
            range(len(dimensions)), key=lambda number: (dimensions[number].size - 1) * dimensions[number].stride
        )
        part = dimensions[longest]
        dimensions = [*dimensions]
        dimensions[longest] = part._replace(size=part.size - part.size // 2)
    return dimensions


def _configured(dimensions: list[_Dimension], partial_bytes: int, offset: int) -> Reduction | None:
    reduced_count = sum(dimension.output_stride == 0 for dimension in dimensions)
    total = math.prod(dimension.size for dimension in dimensions)
    outputs = math.prod(dimension.size for dimension in dimensions if dimension.output_stride)
    inputs = total // outputs
    along_input = reduced_count == len(dimensions) or (
        reduced_count > 0 and dimensions[0].stride < dimensions[reduced_count].stride
    )
    if not reduced_count:
        return None
    columns, rows = (inputs, outputs) if along_input else (outputs, inputs)
    fastest = dimensions[0 if along_input else reduced_count].stride
    vector = 1
    if fastest == 1:
        if along_input and columns >= _LEAST_INPUTS and reduced_count == 1:
            columns //= _VECTOR
        elif not along_input:
            vector = _output_vector(dimensions, reduced_count, offset)
            columns //= vector
    width, height = _block(columns, rows, _THREADS // vector)
    step_input, step_output = (width, 1) if along_input else (1, width)
    values_per_thread = math.ceil(inputs / step_input)
    if values_per_thread < min(height * 16, _MOST_VALUES):
        return None
    values_per_thread = math.ceil(inputs / (step_input * height))
    if values_per_thread < _MOST_VALUES:
        return None
    return Reduction(
        bytes=partial_bytes * outputs * (1 if along_input else width * vector),
        blocks=math.ceil(outputs // vector / step_output),
        threads=width * height,
        values=values_per_thread,
    )


def _output_vector(dimensions: list[_Dimension], place: int, offset: int) -> int:
    """Return the results that a thread computes at once (`get_output_vec_size`)."""
    vector = _VECTOR
    other_strides = [dimension.stride for number, dimension in enumerate(dimensions) if number != place]
    for number in (offset, dimensions[place].size, *other_strides):
        while number % vector:
            vector //= 2
    return vector


def _block(columns: int, rows: int, threads: int) -> tuple[int, int]:
    """Return the width and the height of a block of threads (`set_block_dimension`)."""
    columns, rows = (_last_power(min(number, threads)) for number in (columns, rows))
    width = min(columns, _WARP)
    height = min(rows, threads // width)
    return min(columns, threads // height), height


def _last_power(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)
