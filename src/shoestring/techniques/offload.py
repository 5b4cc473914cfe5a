"""What the device has no room for, in host memory: an optimizer's states, and the weights of blocks not in use."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer

from shoestring.errors import UsageError
from shoestring.settings import Settings
from shoestring.techniques import checkpointing, eightbit

Arrived = Callable[[Tensor], None]
"""Is told of every weight that has come to the device."""

HOST = torch.device("cpu")


class HostOptimizer:
    """An optimizer whose arithmetic and states are in host memory.

    Gradients leave the device one after another, and weights come back into their places, so a step needs nothing
    there. A parameter that is in host memory itself is updated in place. Whoever clips or unscales gradients finds
    the parameters in `param_groups`, as in any optimizer; states belong to their copies in host memory.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        """Take over `optimizer`, before its first step, with its parameters on the device."""
        self._optimizer = optimizer
        self._copies: dict[nn.Parameter, nn.Parameter] = {}
        self._versions: dict[nn.Parameter, int] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.device == HOST:
                    continue
                self._copies[parameter] = copy = nn.Parameter(parameter.detach().to(HOST, copy=True))
                self._versions[parameter] = parameter._version
                if state := optimizer.state.pop(parameter, None):  # Adagrad makes its states at once
                    optimizer.state[copy] = {name: _on_host(value) for name, value in state.items()}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's own, with the parameters on the device."""
        return self._optimizer.param_groups

    @property
    def state(self) -> Mapping[Any, Any]:
        """By parameter in host memory."""
        return self._optimizer.state

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient; the gradients on the device are dropped on the way."""
        for parameter, copy in self._copies.items():
            if parameter._version != self._versions[parameter]:
                copy.copy_(parameter)  # somebody else has changed it: a checkpoint was loaded
            if parameter.grad is not None:
                copy.grad, parameter.grad = parameter.grad.to(HOST), None
        with self._at_home():
            self._optimizer.step()
        for parameter, copy in self._copies.items():
            if copy.grad is not None:
                parameter.copy_(copy)
                copy.grad = None
            self._versions[parameter] = parameter._version

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear what an update without a step has left."""
        self._optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """As the optimizer itself would have it on the device: it goes on without offload, and the reverse."""
        with self._at_home():
            return self._optimizer.state_dict()

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Take over states, into host memory."""
        with self._at_home():
            self._optimizer.load_state_dict(saved)

    @contextlib.contextmanager
    def _at_home(self) -> Iterator[None]:
        """The optimizer with the copies as its parameters."""
        for group in self._optimizer.param_groups:
            group["params"] = [self._copies.get(parameter, parameter) for parameter in group["params"]]
        device = {copy: parameter for parameter, copy in self._copies.items()}
        try:
            yield
        finally:
            # Not the groups from before: loading a state makes new ones.
            for group in self._optimizer.param_groups:
                group["params"] = [device.get(parameter, parameter) for parameter in group["params"]]


def at_home(model: nn.Module, blocks: Sequence[nn.Module]) -> set[nn.Parameter]:
    """The parameters of `blocks`: those that `bring` wants in host memory.

    Raises UsageError where there are no blocks, and where one shares a weight with what is outside of all of them:
    that would be needed in both places.
    """
    if not blocks:
        raise UsageError("offload=parameters: the model has no blocks", hint="offload=optimizer")
    found = {parameter for block in blocks for parameter in block.parameters()}
    inside = {module for block in blocks for module in block.modules()}
    shared = [
        f"{name}.{own}"
        for name, module in model.named_modules()
        for own, parameter in module._parameters.items()
        if module not in inside and parameter in found
    ]
    if shared:
        raise UsageError(
            "offload=parameters: a block's weights are used outside of it too",
            problems=shared,
            hint="offload=optimizer",
        )
    return found


def move(model: nn.Module, recipe: object, settings: Settings, device: torch.device) -> None:
    """Move the model to `device`, but for the weights that `offload=parameters` has come there when they are needed.

    On a CPU host and device are one. To be done before checkpointing. Raises UsageError as `at_home` does.
    """
    if settings.offload != "parameters" or device == HOST:
        model.to(device)
        return
    blocks = checkpointing.blocks(model, recipe)
    stay = {id(parameter) for parameter in at_home(model, blocks)}
    model._apply(lambda tensor: tensor if id(tensor) in stay else tensor.to(device))
    bring(blocks, device, arrived=lambda _: None)


def hosted(optimizer: Optimizer, settings: Settings) -> Optimizer:
    """The optimizer as it takes its steps: it is as good as one, a `HostOptimizer` where something is offloaded.

    Raises UsageError for bitsandbytes' states, whose kernels and pages are those of the device.
    """
    if settings.offload == "no":
        return optimizer
    if eightbit.is_bitsandbytes(optimizer):
        raise UsageError(
            f"offload={settings.offload}: bitsandbytes steps on the device",
            hint="offload=no with optimizer_states=paged_8bit, or optimizer_states=own",
        )
    stepping: Any = HostOptimizer(optimizer)
    return cast(Optimizer, stepping)


def bring(blocks: Sequence[nn.Module], device: torch.device | str, *, arrived: Arrived) -> None:
    """Have the weights of `blocks`, which are in host memory, come to `device` for each forward, and leave after it.

    For backward they come again: one by one as an operator needs them, or for the whole block where it is computed
    again. Gradients go to host memory as they are made. To be done before checkpointing, which must include it.
    Autocast's copies of weights are activations like any other: they stay from forward to backward.
    """
    for block in blocks:
        changed: Any = block
        changed.forward = _brought(block, device, arrived)


def _brought(block: nn.Module, device: torch.device | str, arrived: Arrived) -> Callable[..., Any]:
    # transformers' layers have their own switch for checkpointing around what they do, which would be on the outside.
    plain = getattr(type(block).forward, "__wrapped__", None)
    forward = functools.partial(plain, block) if plain else block.forward

    @functools.wraps(block.forward)
    def brought(*args: Any, **kwargs: Any) -> Any:
        with _weights_of(block, device, arrived) as home:
            # Checkpointing keeps nothing of the inside, and only one can decide what is kept.
            if checkpointing.is_computed_again(block):
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
                    moved[parameter] = parameter.to(device, copy=True)
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
        weight: Tensor = parameter.detach().to(device, copy=True)
        arrived(weight)
        return weight.as_strided(*view)

    return unpack


def _on_host(value: Any) -> Any:
    return value.to(HOST) if isinstance(value, Tensor) else value
