"""Recurrent layers as cuDNN runs them: one fused operator, where torch alone would unroll every time step.

What a fused layer keeps for its backward pass (the reserve space) is opaque; its size here is a model from the
structure of the computation. Per layer, direction, time step and sample cuDNN must keep the activated gates and the
state that the step made, and below the last layer the output with its dropout mask (one byte an element).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from shoestring.trace.pretend import DEVICE, KEY

_LAYERS = {"lstm.input": (4, 6), "gru.input": (3, 5), "rnn_tanh.input": (1, 2), "rnn_relu.input": (1, 2)}
"""Gates, and values kept per unit of state: the gates, the hidden state, and an LSTM's cell state or the part of a
GRU's candidate that its reset gate multiplies."""

_library = torch.library.Library("shoestring", "DEF")
_library.define(
    "recurrent(Tensor input, Tensor[] states, Tensor[] weights, int gates, int kept, int layers, int directions,"
    " bool dropout) -> Tensor[]"
)
_library.define(
    "recurrent_backward(Tensor input, Tensor[] states, Tensor[] weights, int gates, Tensor output, Tensor reserve,"
    " Tensor gradient) -> Tensor[]"
)
_aten = torch.library.Library("aten", "IMPL")
FORWARD = torch.ops.shoestring.recurrent.default
BACKWARD = torch.ops.shoestring.recurrent_backward.default


def set_up() -> None:
    """Have the pretend device run recurrent layers fused, in autocast's type where autocast is on."""
    _library.impl("recurrent", _forward, "Meta")
    _library.impl("recurrent_backward", _backward, "Meta")
    register_flop_formula(torch.ops.shoestring.recurrent, get_raw=True)(_flops)
    register_flop_formula(torch.ops.shoestring.recurrent_backward, get_raw=True)(_backward_flops)
    for name, (gates, kept) in _LAYERS.items():
        _aten.impl(name, _kernel(name, gates, kept), f"Autograd{KEY}")


def launches(sequence: Tensor, _states: list[Tensor], weights: list[Tensor], *_: Any) -> int:
    """Kernels of one fused operator: a product and an elementwise step per time step, layer and direction."""
    return sequence.shape[0] * sum(weight.dim() == 2 for weight in weights)


class _Recurrent(torch.autograd.Function):
    """Forward and backward of a fused layer; `shape` is (gates, kept, layers, directions, dropout)."""

    @staticmethod
    def forward(context: Any, shape: tuple[Any, ...], states: int, sequence: Tensor, *rest: Tensor) -> Any:
        output, *new_states, reserve, _ = FORWARD(sequence, list(rest[:states]), list(rest[states:]), *shape)
        context.save_for_backward(sequence, output, reserve, *rest)
        context.shape, context.states = shape, states
        context.set_materialize_grads(False)
        return output, *new_states

    @staticmethod
    def backward(context: Any, gradient: Tensor | None, *_: Tensor | None) -> Any:
        sequence, output, reserve, *rest = context.saved_tensors
        states, weights = rest[: context.states], rest[context.states :]
        if gradient is None:  # only the last state was used
            gradient = torch.zeros_like(output)
        *gradients, _ = BACKWARD(sequence, states, weights, context.shape[0], output, reserve, gradient)
        wanted = context.needs_input_grad[2:]
        return None, None, *(g if want else None for g, want in zip(gradients, wanted, strict=True))


def _kernel(name: str, gates: int, kept: int) -> Any:
    operator = getattr(torch.ops.aten, name.partition(".")[0]).input

    def kernel(
        sequence: Tensor,
        states: Any,
        weights: list[Tensor],
        has_biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        states = [states] if isinstance(states, Tensor) else list(states)
        directions = 2 if bidirectional else 1
        if len(weights) != layers * directions * (4 if has_biases else 2):
            # Projected states: cuDNN has them, this model has not; unrolled is nearer than wrong.
            return operator.decompose(
                sequence, states, weights, has_biases, layers, dropout, train, bidirectional, batch_first
            )
        if torch.is_autocast_enabled(DEVICE):
            dtype = torch.get_autocast_dtype(DEVICE)
            sequence, states, weights = (
                sequence.to(dtype),
                [state.to(dtype) for state in states],
                [weight.to(dtype) for weight in weights],
            )
        # cuDNN wants time first, and dense.
        sequence = sequence.transpose(0, 1).contiguous() if batch_first else sequence.contiguous()
        shape = (gates, kept, layers, directions, bool(dropout and train))
        run: Any = _Recurrent.apply
        output, *states = run(shape, len(states), sequence, *states, *weights)
        return output.transpose(0, 1) if batch_first else output, *states

    return kernel


def _forward(
    sequence: Tensor,
    states: list[Tensor],
    _weights: list[Tensor],
    gates: int,
    kept: int,
    layers: int,
    directions: int,
    dropout: bool,
) -> list[Tensor]:
    """Output, states, reserve space (bytes), workspace: the first layer's products with all time steps."""
    steps = sequence.shape[0] * sequence.shape[1]
    units = directions * states[0].shape[-1]
    reserve = steps * units * (layers * kept * sequence.element_size() + (layers - 1) * dropout)
    return [
        sequence.new_empty(*sequence.shape[:2], units),
        *(torch.empty_like(state) for state in states),
        sequence.new_empty(reserve, dtype=torch.uint8),
        sequence.new_empty(steps * units * gates),
    ]


def _backward(
    sequence: Tensor, states: list[Tensor], weights: list[Tensor], gates: int, output: Tensor, *_: Tensor
) -> list[Tensor]:
    """Gradients of input, states and weights; workspace: the gates' gradients of all time steps."""
    gradients = [torch.empty_like(tensor) for tensor in (sequence, *states, *weights)]
    return [*gradients, output.new_empty(output.numel() * gates)]


def _flops(sequence: Tensor, _states: list[Tensor], weights: list[Tensor], *_: Any, **__: Any) -> int:
    steps = sequence.shape[0] * sequence.shape[1]
    return 2 * steps * sum(weight.numel() for weight in weights if weight.dim() == 2)


def _backward_flops(*arguments: Any, **options: Any) -> int:
    """Gradients of what went in and of the weights: twice the forward products."""
    return 2 * _flops(*arguments, **options)
