"""Memory that CUDA's kernels allocate for themselves and free before their operator returns.

Each function follows the source that its docstring names (torch 2.10 to 2.13). What depends on the number of a GPU's
multiprocessors is not here but in `estimate/kernel_buffers.py`, because a trace holds for all GPUs of one compute
capability.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoestring.planning.trace import attention_scratch, bounds, sorting
from shoestring.planning.trace.attention import CAPABILITY
from shoestring.planning.trace.record import SplitSum

_ATEN: Any = torch.ops.aten
_FLASH_BACKWARD = _ATEN._scaled_dot_product_flash_attention_backward.default
_INDEX_BYTES, _FLOAT_BYTES = 8, 4


class Scratch(NamedTuple):
    """Steps before and after the operator allocates its results: a size is allocated, `~n` frees the n-th allocation.

    What remains is freed at the end, the last one first.
    """

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


def scratch(func: Any, args: tuple[Any, ...]) -> Scratch:
    """Return the memory that the operator's CUDA kernels allocate for themselves."""
    function = _FUNCTIONS.get(func)
    if function is not None:
        return function(*args)
    positions = bounds.scratch_bytes(func, args)
    return Scratch(after=(positions,)) if positions else Scratch()


def split_sum(func: Any, args: tuple[Any, ...]) -> SplitSum | None:
    """Return what the buffer of sums in parts follows from; None if the operator has none."""
    if func is not _FLASH_BACKWARD:
        return None
    gradient, query, key, _, output = args[:5]
    return attention_scratch.flash_backward(gradient, query, key, output)[2]


def _softmax_backward(gradient: Tensor, *_: Any) -> Scratch:
    """`Tensor tmp = grad * output` in `aten/src/ATen/native/cuda/SoftMax.cu`; log_softmax needs none."""
    return Scratch(after=(_bytes(gradient),))


def _logsumexp(values: Tensor, dim: list[int], *_: Any) -> Scratch:
    """The maxima, whether they are finite, and `(self - maxes).exp_()` (`ReduceOps.cpp: logsumexp_out_impl`)."""
    dims = {d % max(1, values.dim()) for d in dim}
    rows = 1
    for number, size in enumerate(values.shape):
        rows *= 1 if number in dims else size
    maxima = rows * values.element_size()
    return Scratch(before=(maxima, maxima, rows, ~2, ~1, _bytes(values)))


def _integers(values: Tensor, *_: Any) -> Scratch:
    """Narrower integers are sums of a copy in 8 bytes (`ReduceOps.cpp: make_reduction_from_ty`)."""
    is_copied = not values.is_floating_point() and values.dtype != torch.int64
    return Scratch(after=(values.numel() * _INDEX_BYTES,)) if is_copied else Scratch()


def _safe_softmax(scores: Tensor, *_: Any) -> Scratch:
    """Which scores are -inf, and whether all of a row are (`transformers/attention.cpp: _safe_softmax`)."""
    elements = scores.numel()
    return Scratch(after=(elements, elements // max(1, scores.shape[-1]), _FLOAT_BYTES))


def _efficient_attention(query: Tensor, _key: Tensor, value: Tensor, *_: Any) -> Scratch:
    """Sums in fp32 of a 16-bit result whose heads are too wide for registers (`kernel_forward.h`:
    `kNeedsOutputAccumulatorBuffer`, of the kernels for more than 128)."""
    is_wide = query.dtype != torch.float32 and value.shape[-1] > _WIDEST_IN_REGISTERS
    samples, heads, queries, _width = query.shape
    return Scratch(after=(samples * heads * queries * value.shape[-1] * _FLOAT_BYTES,)) if is_wide else Scratch()


_WIDEST_IN_REGISTERS = 128


def _convolution(values: Tensor, weight: Tensor, *_: Any) -> Scratch:
    """Copies of operands in another layout than the kernel's (`Convolution.cpp: _convolution`, `ConvShared.cpp`)."""
    layout = _convolved_layout(values, weight)
    before, after = (
        () if tensor.is_contiguous(memory_format=layout) else (_bytes(tensor),) for tensor in (values, weight)
    )
    return Scratch(before, after)


def _loss_of_each(values: Tensor, _target: Tensor, reduction: int = 1, *_: Any) -> Scratch:
    """The loss of each element, of which the result is the mean or the sum (`BinaryOps.cpp`, `Loss.cpp`)."""
    return Scratch(after=(_bytes(values),)) if reduction else Scratch()


def _loss_with_logits(
    values: Tensor, _target: Tensor, _weight: Any = None, _pos_weight: Any = None, reduction: int = 1
) -> Scratch:
    """The logarithms of the sigmoid and the loss of each element (`Loss.cpp: binary_cross_entropy_with_logits`)."""
    size = _bytes(values)
    return Scratch(before=(size, size)) if reduction else Scratch(after=(size,))


_FEW_INDICES = 3072
"""Up to so many indices, one kernel adds up the gradient of an embedding (`Embedding.cu`)."""
_ROWS_PER_PARTIAL = 10
"""NROWS_PER_THREAD in `EmbeddingBackwardKernel.cu`."""


def _embedding_backward(gradient: Tensor, indices: Tensor, weights: int, *_: Any) -> Scratch:
    """Sorted indices and partial sums in fp32 (`Embedding.cu: embedding_dense_backward_cuda`, whose kernel is in
    `EmbeddingBackwardKernel.cu: embedding_backward_cuda_kernel`).
    """
    count = indices.numel()
    copy = () if gradient.is_contiguous() else (_bytes(gradient),)
    if count <= _FEW_INDICES:
        return Scratch(before=copy)
    size = count * indices.element_size()
    segments = min(count, weights)
    partials = count // _ROWS_PER_PARTIAL + segments
    first = len(copy)
    sort = sorting.Steps(first)
    sort.allocate(size)
    sort.allocate(size)
    sorting.sort_pairs(sort, count, _PASSES)
    width = gradient.shape[-1]
    return Scratch(
        before=(*copy, *sort),
        after=(
            *(size, _INDEX_BYTES, size, _scan_bytes(count, _UNIQUE_BLOCK), ~(first + 7), ~(first + 6)),
            *(segments * _INDEX_BYTES, segments * _INDEX_BYTES, _scan_bytes(segments, _SUM_BLOCK), ~(first + 10)),
            *(_INDEX_BYTES, partials * _INDEX_BYTES, partials * width * _FLOAT_BYTES),
        ),
    )


def _scan_bytes(count: int, block: int) -> int:
    """Return the bytes that CUB asks for to add up `count` numbers one after another, or to select among them."""
    return sorting.aligned((-(-count // block) + _MORE_BLOCKS) * _BLOCK_BYTES) + _ALIGNMENT - 1


_MORE_BLOCKS, _BLOCK_BYTES, _ALIGNMENT = 32, 16, 256
_UNIQUE_BLOCK, _SUM_BLOCK = 320, 1920
"""What PyTorch 2.10's allocator was asked for on a simulated T4: 16 bytes for every 320 indices whose different values
are selected, or for every 1,920 that are added up."""
_PASSES = 8
"""The passes of a sort by all 64 bits."""


def _roll(values: Tensor, _shifts: list[int], dims: Sequence[int] = (), *_: Any) -> Scratch:
    """A copy of values that are not contiguous, and the results of all dimensions but the last (`roll_cuda` in
    `cuda/TensorTransformations.cu`, `roll_common` in `TensorTransformations.h`)."""
    size = _bytes(values)
    results = (size,) * (len(dims) - 1)
    if values.is_contiguous():
        return Scratch(before=results)
    # The copy is freed as soon as the result of the first dimension is there.
    return Scratch(before=(size, size, ~0, *results[1:]) if results else (size,))


def _norms(tensors: list[Tensor], *_: Any) -> Scratch:
    """Partial sums of each chunk of a tensor, for each as many as the longest one has (`ForeachReduceOp.cu`)."""
    chunks = max((-(-tensor.numel() // _CHUNK) for tensor in tensors), default=0)
    return Scratch(before=(len(tensors) * chunks * _FLOAT_BYTES,))


_CHUNK = 65536
"""kChunkSize in `MultiTensorApply.cuh`."""


def _layer_norm(values: Tensor, *_: Any) -> Scratch:
    """A copy of values that are not contiguous (`layer_norm_kernel.cu: layer_norm_cuda`)."""
    return Scratch() if values.is_contiguous() else Scratch(before=(_bytes(values),))


def _layer_norm_backward(gradient: Tensor, values: Tensor, *_: Any) -> Scratch:
    """Copies of what is not contiguous (`layer_norm_kernel.cu: layer_norm_backward_cuda`)."""
    return Scratch(before=tuple(_bytes(tensor) for tensor in (gradient, values) if not tensor.is_contiguous()))


def _group_norm(values: Tensor, *arguments: Any) -> Scratch:
    """A factor and a summand for each sample and channel (`group_norm_kernel.cu: GroupNormKernelImplInternal`)."""
    samples, channels = arguments[2], arguments[3]
    return Scratch(after=(size := samples * channels * values.element_size(), size))


def _group_norm_backward(_gradient: Tensor, _values: Tensor, *arguments: Any) -> Scratch:
    """Sums for each sample and channel, and factors for each group (`GroupNormBackwardKernelImplInternal`)."""
    samples, channels, _, groups, mask = arguments[3:8]
    size = samples * channels * _FLOAT_BYTES
    factors = (samples * groups * _FLOAT_BYTES,) * 2 + (size,) if mask[0] else ()
    return Scratch(after=(size, size, *factors))


def _index_put(*arguments: Any) -> Scratch:
    return Scratch(after=sorting.index_put(*arguments))


def _scatter(*arguments: Any) -> Scratch:
    return Scratch(after=sorting.scatter(*arguments))


def _index_add(*arguments: Any) -> Scratch:
    return Scratch(after=sorting.index_add(*arguments))


def _index_copy(*arguments: Any) -> Scratch:
    return Scratch(after=sorting.index_copy(*arguments))


def _convolution_backward(gradient: Tensor, values: Tensor, weight: Tensor, *_: Any) -> Scratch:
    """Copies of input and gradient in another layout than the kernel's (`Convolution.cpp: convolution_backward`,
    `ConvShared.cpp: cudnn_convolution_backward`)."""
    layout = _convolved_layout(values, weight)
    copied = [tensor for tensor in (values, gradient) if not tensor.is_contiguous(memory_format=layout)]
    return Scratch(before=tuple(_bytes(tensor) for tensor in copied))


def _convolved_layout(values: Tensor, weight: Tensor) -> torch.memory_format:
    from shoestring.planning.trace import layouts

    is_last = values.dim() == 4 and layouts.is_convolved_channels_last(values, weight)
    return torch.channels_last if is_last else torch.contiguous_format


def _efficient_attention_backward(
    gradient: Tensor, query: Tensor, _key: Tensor, value: Tensor, *arguments: Any
) -> Scratch:
    capability = CAPABILITY.get()
    assert capability is not None
    dropout = arguments[5]
    return Scratch(*attention_scratch.efficient_backward(gradient, query, value, dropout, capability))


def _flash_attention_backward(
    gradient: Tensor, query: Tensor, key: Tensor, _value: Tensor, output: Tensor, *_: Any
) -> Scratch:
    return Scratch(*attention_scratch.flash_backward(gradient, query, key, output)[:2])


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


_FUNCTIONS: dict[Any, Callable[..., Scratch]] = {
    _ATEN._softmax_backward_data.default: _softmax_backward,
    _ATEN.logsumexp.default: _logsumexp,
    _ATEN.sum.default: _integers,
    _ATEN.sum.dim_IntList: _integers,
    _ATEN._safe_softmax.default: _safe_softmax,
    _ATEN._scaled_dot_product_efficient_attention.default: _efficient_attention,
    _ATEN.convolution.default: _convolution,
    _ATEN.mse_loss.default: _loss_of_each,
    _ATEN.smooth_l1_loss.default: _loss_of_each,
    _ATEN.huber_loss.default: _loss_of_each,
    _ATEN.binary_cross_entropy_with_logits.default: _loss_with_logits,
    _ATEN.embedding_dense_backward.default: _embedding_backward,
    _ATEN._foreach_norm.Scalar: _norms,
    _ATEN.roll.default: _roll,
    _ATEN.native_layer_norm.default: _layer_norm,
    _ATEN.native_layer_norm_backward.default: _layer_norm_backward,
    _ATEN.native_group_norm.default: _group_norm,
    _ATEN.native_group_norm_backward.default: _group_norm_backward,
    _ATEN.index_put.default: _index_put,
    _ATEN.index_put_.default: _index_put,
    _ATEN._index_put_impl_.default: _index_put,
    _ATEN._unsafe_index_put.default: _index_put,
    **dict.fromkeys((_ATEN.scatter_add.default, _ATEN.scatter_add_.default), _scatter),
    **dict.fromkeys((_ATEN.scatter.src, _ATEN.scatter_.src), _scatter),
    **dict.fromkeys((_ATEN.index_add.default, _ATEN.index_add_.default), _index_add),
    **dict.fromkeys((_ATEN.index_copy.default, _ATEN.index_copy_.default), _index_copy),
    _ATEN.convolution_backward.default: _convolution_backward,
    _FLASH_BACKWARD: _flash_attention_backward,
    _ATEN._scaled_dot_product_efficient_attention_backward.default: _efficient_attention_backward,
}
