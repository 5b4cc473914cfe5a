"""What the device has no room for, in host memory: an optimizer's states, and the weights of blocks not in use."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer

Arrived = Callable[[Tensor], None]
"""Is told of every weight that has come to the device."""

HOST = torch.device("cpu")


class HostOptimizer:
    """An optimizer whose arithmetic and states are in host memory.

    Gradients leave the device one after another, and weights come back into their places, so a step needs nothing
    there. A parameter that is in host memory itself is updated in place.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        """Take over `optimizer`, before its first step, with its parameters on the device."""
        self._optimizer = optimizer
        self._copies: dict[nn.Parameter, nn.Parameter] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                copy = nn.Parameter(parameter.detach().to(HOST)) if parameter.device != HOST else parameter
                self._copies[parameter] = copy
                if state := optimizer.state.pop(parameter, None):  # Adagrad makes its states at once
                    optimizer.state[copy] = {name: _on_host(value) for name, value in state.items()}
            group["params"] = [self._copies[parameter] for parameter in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient; the gradients on the device are dropped on the way."""
        elsewhere = {parameter: copy for parameter, copy in self._copies.items() if copy is not parameter}
        for parameter, copy in elsewhere.items():
            if parameter.grad is not None:
                copy.grad, parameter.grad = parameter.grad.to(HOST), None
        self._optimizer.step()
        for parameter, copy in elsewhere.items():
            if copy.grad is not None:
                parameter.copy_(copy)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._optimizer.zero_grad(set_to_none)


def bring(
    blocks: Sequence[nn.Module], device: torch.device | str, *, again: Collection[nn.Module], arrived: Arrived
) -> None:
    """Have the weights of `blocks`, which are in host memory, come to `device` for each forward, and leave after it.

    For backward they come again: one by one as an operator needs them, or for the whole block where it is computed
    `again`. Gradients go to host memory as they are made. To be done before checkpointing, which must include it.
    Autocast's copies of weights are activations like any other: they stay from forward to backward.
    """
    for block in blocks:
        changed: Any = block
        changed.forward = _brought(block, device, arrived, keep_off=block not in again)


def _brought(block: nn.Module, device: torch.device | str, arrived: Arrived, *, keep_off: bool) -> Callable[..., Any]:
    # transformers' layers have their own switch for checkpointing around what they do, which would be on the outside.
    plain = getattr(type(block).forward, "__wrapped__", None)
    forward = functools.partial(plain, block) if plain else block.forward

    @functools.wraps(block.forward)
    def brought(*args: Any, **kwargs: Any) -> Any:
        with _weights_of(block, device, arrived) as home:
            if not keep_off:  # checkpointing keeps nothing of the inside, and only one can decide what is kept
                return forward(*args, **kwargs)
            with saved_tensors_hooks(_pack(home), _unpack(device, arrived)):
                return forward(*args, **kwargs)

    return brought


@contextlib.contextmanager
def _weights_of(block: nn.Module, device: torch.device | str, arrived: Arrived) -> Iterator[dict[int, Tensor]]:
    """The block with its weights on the device; yields the parameter of each by the address of its storage there."""
    moved: dict[nn.Parameter, Tensor] = {}
    before: list[tuple[dict[str, Any], dict[str, nn.Parameter | None]]] = []
    for module in block.modules():
        slots: dict[str, Any] = module._parameters
        before.append((slots, dict(slots)))
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if parameter not in moved:
                    moved[parameter] = parameter.to(device)
                    arrived(moved[parameter])
                slots[name] = moved[parameter]
    try:
        yield {tensor.untyped_storage()._cdata: parameter for parameter, tensor in moved.items()}
    finally:
        for slots, own in before:
            slots.update(own)


def _pack(home: dict[int, Tensor]) -> Callable[[Tensor], Any]:
    def pack(saved: Tensor) -> Any:
        parameter = home.get(saved.untyped_storage()._cdata)
        if parameter is None:
            return saved
        return parameter, saved.size(), saved.stride(), saved.storage_offset()

    return pack


def _unpack(device: torch.device | str, arrived: Arrived) -> Callable[[Any], Tensor]:
    def unpack(kept: Any) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        parameter, *view = kept
        weight: Tensor = parameter.detach().to(device)
        arrived(weight)
        return weight.as_strided(*view)

    return unpack


def _on_host(value: Any) -> Any:
    return value.to(HOST) if isinstance(value, Tensor) else value
