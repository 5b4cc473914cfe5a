"""Recurrent layers as cuDNN runs them: one fused operator, where torch alone would unroll every time step.

The reserve space, which a fused layer saves for backward, is opaque; its size here is modeled from the structure of the
computation. Per layer, direction, time step and sample cuDNN must save the activated gates and the new state, and below
the last layer the output with its dropout mask (one byte per element).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from shoestring.planning.trace.simulated_device import DEVICE, KEY

_LAYERS = {"lstm.input": (4, 6), "gru.input": (3, 5), "rnn_tanh.input": (1, 2), "rnn_relu.input": (1, 2)}
"""The number of gates, and of values saved per unit of state: the gates, the hidden state, and an LSTM's cell state or
the part of a GRU's candidate that its reset gate multiplies."""

_library = torch.library.Library("shoestring", "DEF")
_library.define(
    "recurrent(Tensor input, Tensor[] states, Tensor[] weights, int gates, int saved, int layers, int directions,"
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
    """Run recurrent layers on the simulated device as fused operators, under autocast in its type."""
    _library.impl("recurrent", _forward, "Meta")
    _library.impl("recurrent_backward", _backward, "Meta")
    register_flop_formula(torch.ops.shoestring.recurrent, get_raw=True)(_flops)
    register_flop_formula(torch.ops.shoestring.recurrent_backward, get_raw=True)(_backward_flops)
    for name, (gates, saved) in _LAYERS.items():
        _aten.impl(name, _kernel(name, gates, saved), f"Autograd{KEY}")


def launches(sequence: Tensor, _states: list[Tensor], weights: list[Tensor], *_: Any) -> int:
    """Return the kernels of one fused operator: a product and an elementwise one per time step, layer and direction."""
    return sequence.shape[0] * sum(weight.dim() == 2 for weight in weights)


class _Recurrent(torch.autograd.Function):
    """Forward and backward of a fused layer; `shape` is (gates, saved, layers, directions, dropout)."""

    @staticmethod
    def forward(
        context: Any, shape: tuple[Any, ...], state_count: int, sequence: Tensor, *states_and_weights: Tensor
    ) -> Any:
        states, weights = list(states_and_weights[:state_count]), list(states_and_weights[state_count:])
        output, *new_states, reserve, _ = FORWARD(sequence, states, weights, *shape)
        context.save_for_backward(sequence, output, reserve, *states_and_weights)
        context.shape, context.state_count = shape, state_count
        context.set_materialize_grads(False)
        return output, *new_states

    @staticmethod
    def backward(context: Any, gradient: Tensor | None, *_: Tensor | None) -> Any:
        sequence, output, reserve, *states_and_weights = context.saved_tensors
        states, weights = states_and_weights[: context.state_count], states_and_weights[context.state_count :]
        if gradient is None:  # only the last state was used
            gradient = torch.zeros_like(output)
        *gradients, _ = BACKWARD(sequence, states, weights, context.shape[0], output, reserve, gradient)
        required = context.needs_input_grad[2:]
        return None, None, *(g if is_required else None for g, is_required in zip(gradients, required, strict=True))


def _kernel(name: str, gates: int, saved: int) -> Any:
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
            # Projected states: cuDNN supports them, this model does not, so the layer is unrolled.
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
        # cuDNN requires a contiguous sequence with time first.
        sequence = sequence.transpose(0, 1).contiguous() if batch_first else sequence.contiguous()
        # Only a layer that is trained has a reserve space (`_cudnn_rnn` in `aten/src/ATen/native/cudnn/RNN.cpp`).
        shape = (gates, saved if train else 0, layers, directions, bool(dropout and train))
        apply: Any = _Recurrent.apply
        output, *states = apply(shape, len(states), sequence, *states, *weights)
        return output.transpose(0, 1) if batch_first else output, *states

    return kernel


def _forward(
    sequence: Tensor,
    states: list[Tensor],
    _weights: list[Tensor],
    gates: int,
    saved: int,
    layers: int,
    directions: int,
    dropout: bool,
) -> list[Tensor]:
    """Return the output, the states, the reserve space (bytes), and a workspace for the gates of all time steps."""
    steps = sequence.shape[0] * sequence.shape[1]
    units = directions * states[0].shape[-1]
    reserve = steps * units * (layers * saved * sequence.element_size() + (layers - 1) * dropout)
    return [
        sequence.new_empty(*sequence.shape[:2], units),
        *(torch.empty_like(state) for state in states),
        sequence.new_empty(reserve, dtype=torch.uint8),
        sequence.new_empty(steps * units * gates),
    ]


def _backward(
    sequence: Tensor, states: list[Tensor], weights: list[Tensor], gates: int, output: Tensor, *_: Tensor
) -> list[Tensor]:
    """Return the gradients of input, states and weights, and a workspace for the gates' gradients of all time steps."""
    gradients = [torch.empty_like(tensor) for tensor in (sequence, *states, *weights)]
    return [*gradients, output.new_empty(output.numel() * gates)]


def _flops(sequence: Tensor, _states: list[Tensor], weights: list[Tensor], *_: Any, **__: Any) -> int:
    steps = sequence.shape[0] * sequence.shape[1]
    return 2 * steps * sum(weight.numel() for weight in weights if weight.dim() == 2)


def _backward_flops(*arguments: Any, **options: Any) -> int:
    """Return the FLOPs of the gradients of the inputs and of the weights: twice those of the forward products."""
    return 2 * _flops(*arguments, **options)
