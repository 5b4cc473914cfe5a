"""The operators that are measured: those that most training steps consist of, in the sizes of a grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from shoestring.base.settings import Precision
from shoestring.runs.check.rates.grid import Grid

_aten = torch.ops.aten

DTYPES: Mapping[Precision, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

Call = Callable[[], Any]


class Operands:
    """Random tensors, as parts of one buffer: numbers that are all equal would cost a GPU less power."""

    def __init__(self, device: torch.device, dtype: torch.dtype, values: int) -> None:
        self._pool = torch.rand(values, device=device).to(dtype).add_(0.5)
        self._used = 0

    def restart(self) -> None:
        """Hand out the buffer from its start again."""
        self._used = 0

    def __call__(self, *shape: int) -> Tensor:
        """Return a tensor of this shape, from another part of the buffer as long as it has one."""
        count = math.prod(shape)
        if self._used + count > self._pool.numel():
            self._used = 0
        part = self._pool[self._used : self._used + count]
        self._used += -(-count // 64) * 64
        return part.view(shape)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An operator in one size."""

    precision: Precision
    make: Callable[[Operands], Call]
    """Returns a function that calls the operator once."""
    values: int
    """The values of all operands, for the size of the buffer."""
    layout: str = ""
    replaces: tuple[str, int, int] | None = None
    """The name, the FLOPs and the kernels that a recipe's trace has for it, where torch runs it in many operators."""
    bytes: int | None = None
    """The bytes that the trace has for it; None: those of its largest operator."""


def subjects(grid: Grid, precisions: tuple[Precision, ...]) -> Iterator[Subject]:
    """Yield what is measured on a device that trains in `precisions`."""
    for precision in precisions:
        yield from _products(grid, precision)
        yield from _convolutions(grid, precision)
        yield from _attention(grid, precision)
    yield from _recurrent(grid)
    for values in grid.values:
        yield Subject(
            precision="fp32",
            make=_of_size(_dropout, values),
            values=2 * values,
            replaces=("aten::native_dropout", 0, 1),
            bytes=9 * values,
        )
        for make in MEMORY_BOUND:
            yield Subject(precision="fp32", make=_of_size(make, values), values=3 * values)


def _products(grid: Grid, precision: Precision) -> Iterator[Subject]:
    for rows, columns, depth in product(grid.sides, repeat=3):
        yield Subject(
            precision=precision,
            make=lambda take, r=rows, c=columns, d=depth: _bind(torch.mm, take(r, d), take(d, c)),  # type: ignore[misc]
            values=(rows + columns) * depth,
        )
    for batch in grid.batches:
        for rows, columns, depth in product(grid.batched_sides, repeat=3):
            yield Subject(
                precision=precision,
                make=lambda take, b=batch, r=rows, c=columns, d=depth: _bind(  # type: ignore[misc]
                    torch.bmm, take(b, r, d), take(b, d, c)
                ),
                values=batch * (rows + columns) * depth,
            )


def _convolutions(grid: Grid, precision: Precision) -> Iterator[Subject]:
    """Yield the forward pass, the gradient of the weight alone, and both gradients; of 1x1 and 3x3 kernels."""
    # Tensor cores compute in channels_last, and cuDNN transposes the other format.
    layouts = ("channels_first",) if precision == "fp32" else ("channels_first", "channels_last")
    for (images, side), inputs, outputs, kernel in product(grid.images, grid.channels, grid.channels, (1, 3)):
        for layout, gradients in product(layouts, ((), (False, True, False), (True, True, False))):
            yield Subject(
                precision=precision,
                make=_convolution(images, side, inputs, outputs, kernel, layout, list(gradients)),
                values=(images * side * side + kernel * kernel * inputs) * (inputs + outputs),
                layout=layout,
            )


def _convolution(
    images: int, side: int, inputs: int, outputs: int, kernel: int, layout: str, gradients: list[bool]
) -> Callable[[Operands], Call]:
    memory_format = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    options = [1, 1], [kernel // 2] * 2, [1, 1], False, [0, 0], 1

    def make(take: Operands) -> Call:
        values = take(images, inputs, side, side).contiguous(memory_format=memory_format)
        weight = take(outputs, inputs, kernel, kernel).contiguous(memory_format=memory_format)
        if not gradients:
            return lambda: _aten.convolution(values, weight, None, *options)
        gradient = take(images, outputs, side, side).contiguous(memory_format=memory_format)
        return lambda: _aten.convolution_backward(gradient, values, weight, [0], *options, gradients)

    return make


_attend: Callable[..., Tensor] = torch.nn.functional.scaled_dot_product_attention


def _attention(grid: Grid, precision: Precision) -> Iterator[Subject]:
    for heads, length, width in grid.attention:
        shape, values = (1, heads, length, width), 5 * heads * length * width

        def forward(take: Operands, shape: tuple[int, ...] = shape) -> Call:
            return _bind(_attend, *(take(*shape) for _ in range(3)))

        def backward(take: Operands, shape: tuple[int, ...] = shape) -> Call:
            inputs = [take(*shape).clone().requires_grad_() for _ in range(3)]
            with torch.enable_grad():
                output = _attend(*inputs)
            return _gradients(output, inputs, take(*shape))

        yield Subject(precision=precision, make=forward, values=values)
        yield Subject(precision=precision, make=backward, values=values)


def _recurrent(grid: Grid) -> Iterator[Subject]:
    for steps, samples, units in grid.recurrent:
        flops, launches, values = 2 * steps * samples * 8 * units * units, 2 * steps, 3 * steps * samples * units

        def layer(take: Operands, shape: tuple[int, ...] = (steps, samples, units)) -> tuple[Tensor, list[Tensor]]:
            """Return the output of a layer that autograd has recorded, and its inputs."""
            sequence = take(*shape).clone().requires_grad_()
            lstm = torch.nn.LSTM(shape[-1], shape[-1]).to(sequence.device)
            with torch.enable_grad():
                output: Tensor = lstm(sequence)[0]
            return output, [sequence, *lstm.parameters()]

        def forward(take: Operands, shape: tuple[int, ...] = (steps, samples, units)) -> Call:
            sequence = take(*shape)
            lstm = torch.nn.LSTM(shape[-1], shape[-1]).to(sequence.device)
            return torch.enable_grad()(lambda: lstm(sequence))

        def backward(take: Operands, make: Any = layer) -> Call:
            output, inputs = make(take)
            return _gradients(output, inputs, take(*output.shape))

        yield Subject(
            precision="fp32", make=forward, values=values, replaces=("shoestring::recurrent", flops, launches)
        )
        yield Subject(
            precision="fp32",
            make=backward,
            values=values,
            replaces=("shoestring::recurrent_backward", 2 * flops, launches),
        )


def _gradients(output: Tensor, inputs: list[Tensor], gradient: Tensor) -> Call:
    """Return a function that computes the gradients of the inputs, as often as it is called."""
    return lambda: torch.autograd.grad(output, inputs, gradient, retain_graph=True)


def _of_size(make: Callable[[Operands, int], Call], values: int) -> Callable[[Operands], Call]:
    return lambda take: make(take, values)


def _bind(function: Callable[..., Any], *arguments: Any) -> Call:
    return lambda: function(*arguments)


def _elementwise(function: Callable[[Tensor, Tensor, Tensor], Any]) -> Callable[[Operands, int], Call]:
    """Return a maker of calls with three operands of the same shape, of rows of 256 values."""

    def make(take: Operands, values: int) -> Call:
        shape = (values // 256, 256)
        return _bind(function, take(*shape), take(*shape), take(*shape))

    return make


def _dropout(take: Operands, values: int) -> Call:
    """Return a call of dropout as training makes it: on a CPU it is several operators, on a GPU one."""
    x = take(values // 256, 256).clone().requires_grad_()
    return torch.enable_grad()(lambda: torch.nn.functional.dropout(x, 0.1))


def _layer_norm_backward(take: Operands, values: int) -> Call:
    gradient, x, weight = take(values // 256, 256), take(values // 256, 256), take(256)
    mean, deviation = take(values // 256, 1), take(values // 256, 1)
    return lambda: _aten.native_layer_norm_backward(
        gradient, x, [256], mean, deviation, weight, weight, [True, True, True]
    )


def _batch_norm(take: Operands, values: int) -> Call:
    x, weight = take(values // 4096, 64, 8, 8), take(64)
    mean, variance = weight.clone(), weight.clone()
    return lambda: _aten.native_batch_norm(x, weight, weight, mean, variance, True, 0.1, 1e-5)


def _batch_norm_backward(take: Operands, values: int) -> Call:
    gradient, x, weight = take(values // 4096, 64, 8, 8), take(values // 4096, 64, 8, 8), take(64)
    masks = [True, True, True]
    return lambda: _aten.native_batch_norm_backward(
        gradient, x, weight, weight, weight, weight, weight, True, 1e-5, masks
    )


def _embedding(take: Operands, values: int) -> Call:
    table = take(4096, 64)
    rows = torch.arange(values // 64, device=table.device) % 4096
    return lambda: _aten.embedding(table, rows)


def _embedding_backward(take: Operands, values: int) -> Call:
    gradient = take(values // 64, 64)
    rows = torch.arange(values // 64, device=gradient.device) % 4096
    return lambda: _aten.embedding_dense_backward(gradient, rows, 4096, -1, False)


def _max_pool(take: Operands, values: int) -> Call:
    x = take(values // 4096, 16, 16, 16)
    return lambda: _aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])


def _max_pool_backward(take: Operands, values: int) -> Call:
    x = take(values // 4096, 16, 16, 16)
    output, indices = _aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])
    return lambda: _aten.max_pool2d_with_indices_backward(output, x, [3, 3], [2, 2], [1, 1], [1, 1], False, indices)


def _transposed_copy(take: Operands, values: int) -> Call:
    x = take(values // 4096, 16, 4, 64).transpose(1, 2)  # as heads of attention are separated
    return lambda: x.clone(memory_format=torch.contiguous_format)


MEMORY_BOUND: tuple[Callable[[Operands, int], Call], ...] = (
    *map(
        _elementwise,
        (
            lambda x, y, _: x + y,
            lambda x, *_: x * 2.0,
            lambda x, y, _: x / y,
            lambda x, *_: x.sqrt(),
            lambda x, *_: x.exp(),
            lambda x, *_: x.tanh(),
            lambda x, *_: x.sigmoid(),
            lambda x, *_: x.pow(3.0),
            lambda x, *_: x.relu(),
            lambda x, y, _: _aten.threshold_backward(y, x, 0.0),
            lambda x, *_: _aten.gelu(x),
            lambda x, y, _: _aten.gelu_backward(y, x),
            lambda x, *_: _aten.silu(x),
            lambda x, y, _: _aten.silu_backward(y, x),
            lambda x, y, _: _aten.tanh_backward(y, x),
            # In place with factors that leave the values as they are, because later operators read them.
            lambda x, y, _: x.add_(y, alpha=0.0),
            lambda x, *_: x.mul_(1.0),
            lambda x, y, z: x.addcmul_(y, z, value=0.0),
            lambda x, y, z: x.addcdiv_(y, z, value=0.0),
            lambda x, y, _: x.lerp_(y, 0.0),
            lambda x, *_: _aten._softmax(x, -1, False),
            lambda x, *_: _aten._safe_softmax(x, -1),
            lambda x, y, _: _aten._softmax_backward_data(y, x, -1, x.dtype),
            lambda x, *_: _aten._log_softmax(x, -1, False),
            lambda x, y, _: _aten._log_softmax_backward_data(y, x, -1, x.dtype),
            lambda x, y, _: _aten.native_layer_norm(x, [256], y[0], y[0], 1e-5),
            lambda x, *_: x.sum(0),
            lambda x, *_: x.mean(-1),
            lambda x, *_: torch.linalg.vector_norm(x),
            lambda x, y, _: torch.cat((x, y)),
            lambda x, y, _: torch.where(x > y, x, y),
            lambda x, *_: x.clone(),
            lambda x, *_: x.fill_(1.0),
        ),
    ),
    _layer_norm_backward,
    _batch_norm,
    _batch_norm_backward,
    _embedding,
    _embedding_backward,
    _max_pool,
    _max_pool_backward,
    _transposed_copy,
)
"""Makers of calls with operands of so many values."""
