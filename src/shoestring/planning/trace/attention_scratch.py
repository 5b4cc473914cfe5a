"""The workspaces of fused attention's backward pass (torch 2.10 to 2.13).

Flash attention has copies of a gradient and of an output in another layout than the kernel's
(`attention_backward.cu: _flash_attention_backward`), sums of the product of output and gradient for each query, sums
of the queries' gradient in fp32, in parts if they are made in a fixed order, and gradients of the keys for each head of
the queries that shares them (`mha_bwd` in `aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp`).

For the memory-efficient attention `_efficient_attention_backward` in
`aten/src/ATen/native/transformers/cuda/attention_backward.cu` runs the first kernel of a list that can compute the head
(`mem_eff_attention/kernels/cutlassB.h`) and whose shared memory the GPU has. Its blocks have I queries and J keys. The
workspaces follow `AttentionBackwardKernel::Params` in `mem_eff_attention/kernel_backward.h`: sums of the queries'
gradient in fp32, always, and those of keys and values if the kernel does not keep them in registers, which it does for
16-bit types and heads of at most I. Training runs the deterministic variant, in which one block computes all keys of a
head.

Which kernel fits the shared memory is not in the source. It follows from the workspaces that PyTorch 2.10's allocator
was asked for on simulated GPUs of capability 7.0, 7.5, 8.0, 8.6, 8.9 and 9.0, for heads of 16 to 256.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from shoestring.planning.trace.record import SplitSum

_FLOAT_BYTES = 4
_LOCK_BYTES = 16
"""The lock and the counter of each block of the queries' gradient (`GradQTempStorage`)."""

_MUCH_SHARED_MEMORY = ((8, 0), (9, 0), (10, 0), (10, 3))
"""Compute capabilities of which a block can have more than 128 KiB of shared memory; others have at most 99."""


class _Kernel(NamedTuple):
    queries: int
    keys: int
    """The queries and keys of a block."""
    in_registers: bool
    """Whether the sums of the keys' and values' gradients are in registers, or in the result, which fp32 allows."""
    computes_delta: bool = True
    """Whether the kernel computes the sums of the product of output and gradient; otherwise operators do before."""


def efficient_backward(
    gradient: Tensor, query: Tensor, value: Tensor, dropout: float, capability: tuple[int, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the steps before and after the gradients are allocated, as in `scratch.Scratch`."""
    samples, heads, queries, width = query.shape
    value_width = value.shape[-1]
    kernel = _kernel(query.dtype, max(width, value_width), dropout > 0, capability)
    # The layout of the kernel has the heads after the positions.
    is_contiguous = gradient.transpose(1, 2).is_contiguous()
    copy = () if is_contiguous else (gradient.numel() * gradient.element_size(),)
    first = len(copy)
    delta = samples * heads * queries * _FLOAT_BYTES
    workspace = samples * heads * _workspace(kernel, queries, width, value_width) * _FLOAT_BYTES
    if kernel.computes_delta:
        return copy, (delta, workspace, ~first, ~(first + 1))
    product = gradient.numel() * _FLOAT_BYTES
    # Both factors and their product in fp32, the sums of each head, and these in another order.
    factors = (product,) * (1 if query.dtype == torch.float32 else 3)
    count = first + len(factors)
    steps = (*factors, delta, delta, ~count, *(~number for number in range(count - 1, first - 1, -1)))
    return copy, (*steps, workspace, ~(count + 1), ~(count + 2))


def flash_backward(
    gradient: Tensor, query: Tensor, key: Tensor, output: Tensor
) -> tuple[tuple[int, ...], tuple[int, ...], SplitSum]:
    """Return the steps before and after the gradients are allocated, and what the sums in parts follow from."""
    samples, heads, queries, width = query.shape
    copied = [tensor for tensor in (gradient, output) if not tensor.transpose(1, 2).is_contiguous()]
    copies = tuple(tensor.numel() * tensor.element_size() for tensor in copied)
    rows = samples * heads * _rounded(queries, 128)
    rounded_width = _rounded(width, 32) if width <= 192 else 256
    expanded: tuple[int, ...] = ()
    if key.shape[1] != heads:
        size = samples * heads * key.shape[2] * width * key.element_size()
        expanded = (size, size)
    sums = SplitSum(rows * rounded_width * _FLOAT_BYTES, samples * heads)
    return copies, (rows * _FLOAT_BYTES, *expanded), sums


def _rounded(number: int, multiple: int) -> int:
    return math.ceil(number / multiple) * multiple


def _kernel(dtype: torch.dtype, width: int, has_dropout: bool, capability: tuple[int, int]) -> _Kernel:
    much_memory = capability in _MUCH_SHARED_MEMORY
    if dtype == torch.float32:
        return _Kernel(128 if width > 64 and much_memory else 64, 64, True, computes_delta=False)
    if width <= 64:
        return _Kernel(64, 64, True)
    if width > 128:
        return _Kernel(128, 64, False, computes_delta=capability >= (7, 5))
    if capability < (8, 0):
        return _Kernel(128, 64, True)
    if much_memory:
        return _Kernel(128, 128, True)
    if width <= 96 and not has_dropout and capability in ((8, 6), (8, 9)):
        return _Kernel(128, 64, True)
    return _Kernel(64, 64, False)


def _workspace(kernel: _Kernel, queries: int, width: int, value_width: int) -> int:
    """Return the numbers of a head's workspace, a multiple of 4."""
    rows, columns = kernel.queries, kernel.keys
    blocks = math.ceil(queries / rows) * math.ceil(width / columns)
    numbers = blocks * (_LOCK_BYTES // _FLOAT_BYTES + rows * columns)
    if not kernel.in_registers:
        numbers += columns * sum(math.ceil(size / rows) * rows for size in (width, value_width))
    return math.ceil(numbers / 4) * 4
