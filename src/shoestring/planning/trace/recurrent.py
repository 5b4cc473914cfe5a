"""Recurrent layers as cuDNN runs them: one fused operator, where torch alone would unroll every time step.

The reserve space, which a fused layer saves for backward, is opaque; its size here is modeled from the structure of the
computation, and so is that of workspaces. Per layer, direction, time step and sample cuDNN must save the activated
gates and the new state, and below the last layer the output with its dropout mask (one byte per element).

What else is allocated follows `_cudnn_rnn` and `_cudnn_rnn_backward` in `aten/src/ATen/native/cudnn/RNN.cpp`. A layer
has its weights in one buffer, which `Module.to` makes (`flatten_parameters` in `torch/nn/modules/rnn.py`), and autocast
casts them to another one in each call (`AutocastRNN.cpp`). The random state of dropout between layers, of a few
megabytes, is not recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import register_flop_formula

from shoestring.planning.trace.attention import CAPABILITY
from shoestring.planning.trace.event_log import EventLog
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


def launches(sequence: Tensor, states: list[Tensor], *_: Any) -> int:
    """Return the kernels of one fused operator: a product and an elementwise one per time step, layer and direction."""
    return sequence.shape[0] * 2 * states[0].shape[0]


def flatten(log: EventLog, module: nn.Module) -> None:
    """Record that the weights of a recurrent layer, which are on the device, are copied to one buffer and freed."""
    if not isinstance(module, nn.RNNBase):
        return
    weights = [weight for weight in module._parameters.values() if weight is not None]
    is_shared = len(set(weights)) < len(weights) or len({weight.dtype for weight in weights}) > 1
    if is_shared or any(weight.device.type != DEVICE for weight in weights):
        return
    buffer = _buffer(weights)
    log.label([buffer], "weights")
    for holder in (module, *weights):
        vars(holder)[_BUFFER] = buffer
    for weight in weights:
        log.release(weight)


_BUFFER = "_simulated_buffer"
"""The attribute of a module and its weights that has their common buffer."""


def _buffer(weights: Sequence[Tensor], dtype: torch.dtype | None = None) -> Tensor:
    elements = sum(weight.numel() for weight in weights)
    return torch.zeros(elements, dtype=dtype or weights[0].dtype, device=DEVICE)


class _Cast(torch.autograd.Function):
    """The cast of all weights of a layer to one buffer."""

    @staticmethod
    def forward(context: Any, dtype: torch.dtype, *weights: Tensor) -> Tensor:
        context.weights = [(weight.shape, weight.dtype) for weight in weights]
        return _buffer(weights, dtype)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        pieces = gradient.split([shape.numel() for shape, _ in context.weights])
        gradients: list[Tensor | None] = [None] * len(pieces)
        for number in reversed(range(len(pieces))):  # autograd runs the latest copy first
            shape, dtype = context.weights[number]
            if context.needs_input_grad[1 + number]:
                gradients[number] = pieces[number].view(shape).to(dtype)
        return None, *gradients


class _Recurrent(torch.autograd.Function):
    """Forward and backward of a fused layer; `shape` is (gates, saved, layers, directions, dropout)."""

    @staticmethod
    def forward(
        context: Any, shape: tuple[Any, ...], state_count: int, sequence: Tensor, *states_and_weights: Tensor
    ) -> Any:
        states, weights = list(states_and_weights[:state_count]), list(states_and_weights[state_count:])
        # Without a common buffer, the layer copies the weights to one in each call, and saves it for backward.
        is_flat = CAPABILITY.get() is None or len(weights) == 1 or all(_BUFFER in vars(weight) for weight in weights)
        copy, buffer = sequence.contiguous(), None if is_flat else _buffer(weights)
        output, *new_states, workspace, reserve = FORWARD(copy, states, weights, *shape)
        del copy, workspace
        context.save_for_backward(sequence, output, reserve, *states_and_weights)
        context.shape, context.state_count, context.buffer = shape, state_count, buffer
        context.set_materialize_grads(False)
        return output, *new_states

    @staticmethod
    def backward(context: Any, gradient: Tensor | None, *state_gradients: Tensor | None) -> Any:
        sequence, output, reserve, *states_and_weights = context.saved_tensors
        states, weights = states_and_weights[: context.state_count], states_and_weights[context.state_count :]
        if gradient is None:  # only the last state was used
            gradient = torch.zeros_like(output)
        # `_cudnn_rnn_backward_input`, then `_cudnn_rnn_backward_weight`.
        zeros = [
            torch.zeros_like(s)
            for s, state_gradient in zip(states, state_gradients, strict=True)
            if state_gradient is None
        ]
        copy, copied_gradient = sequence.contiguous(), gradient.contiguous()
        *gradients, workspace = BACKWARD(copy, states, weights, context.shape[0], output, reserve, copied_gradient)
        size = workspace.shape
        del workspace, copy, copied_gradient
        copy, of_weights = sequence.contiguous(), _buffer(weights)
        workspace = output.new_empty(size)
        context.buffer = None
        del workspace, copy, zeros
        pieces = of_weights.split([weight.numel() for weight in weights])
        gradients += [piece.view(weight.shape) for piece, weight in zip(pieces, weights, strict=True)]
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
        apply: Any
        if torch.is_autocast_enabled(DEVICE):
            dtype = torch.get_autocast_dtype(DEVICE)
            if any(weight.dtype != dtype for weight in weights):
                apply = _Cast.apply
                weights = [apply(dtype, *weights)]
            states = [state.to(dtype) for state in reversed(states)][::-1]
            sequence = sequence.to(dtype)
        sequence = sequence.transpose(0, 1) if batch_first else sequence
        # Only a layer that is trained has a reserve space (`_cudnn_rnn` in `aten/src/ATen/native/cudnn/RNN.cpp`).
        shape = (gates, saved if train else 0, layers, directions, bool(dropout and train))
        apply = _Recurrent.apply
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
    """Return the output, the states, a workspace for the gates of all time steps, and the reserve space (bytes)."""
    steps = sequence.shape[0] * sequence.shape[1]
    units = directions * states[0].shape[-1]
    reserve = steps * units * (layers * saved * sequence.element_size() + (layers - 1) * dropout)
    return [
        sequence.new_empty(*sequence.shape[:2], units),
        *(torch.empty_like(state) for state in states),
        sequence.new_empty(steps * units * gates),
        sequence.new_empty(reserve, dtype=torch.uint8),
    ]


def _backward(
    sequence: Tensor, states: list[Tensor], _weights: Any, gates: int, output: Tensor, *_: Any
) -> list[Tensor]:
    """Return the gradients of input and states, and a workspace for the gates' gradients of all time steps."""
    gradients = [torch.empty_like(tensor) for tensor in (sequence, *states)]
    return [*gradients, output.new_empty(output.numel() * gates)]


def _flops(sequence: Tensor, states: list[Tensor], _weights: Any, gates: int, *arguments: Any, **_: Any) -> int:
    """Return the FLOPs of the products of each layer's input and of its state with their matrices."""
    directions = arguments[2]
    return _product_flops(sequence, states, gates, directions)


def _backward_flops(
    sequence: Tensor, states: list[Tensor], _weights: Any, gates: int, output: Tensor, *_: Any, **__: Any
) -> int:
    """Return the FLOPs of the gradients of the inputs and of the weights: twice those of the forward products."""
    return 2 * _product_flops(sequence, states, gates, output.shape[-1] // states[0].shape[-1])


def _product_flops(sequence: Tensor, states: list[Tensor], gates: int, directions: int) -> int:
    steps, samples, width = sequence.shape
    units = states[0].shape[-1]
    later_layers = states[0].shape[0] // directions - 1
    columns = width + units + later_layers * (directions * units + units)
    return 2 * steps * samples * directions * gates * units * columns
