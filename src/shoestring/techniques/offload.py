"""Offloading to host memory: an optimizer's states, and the weights of blocks that are not in use."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.techniques import checkpointing, deferred_casts, eightbit

OnCopy = Callable[[Tensor], None]
"""Called with every weight that has been copied to the device."""

HOST = torch.device("cpu")


class HostOptimizer(Optimizer):
    """An optimizer whose arithmetic and states are in host memory.

    Gradients are moved off the device one at a time, and updated weights are copied back in place, so a step needs no
    device memory. A parameter that is in host memory itself is updated in place. For clipping and unscaling gradients,
    `param_groups` has the parameters on the device, as in any optimizer; the states belong to their copies in host
    memory.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        """Wrap `optimizer`, before its first step, with its parameters on the device."""
        # Not initialized as an optimizer: its interface is that of `optimizer`.
        self._optimizer = optimizer
        self._copies: dict[Tensor, nn.Parameter] = {}
        self._versions: dict[Tensor, int] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.device == HOST:
                    continue
                self._copies[parameter] = copy = nn.Parameter(parameter.detach().to(HOST, copy=True))
                self._versions[parameter] = parameter._version
                if state := optimizer.state.pop(parameter, None):  # Adagrad creates its states in its constructor
                    optimizer.state[copy] = {name: _to_host(value) for name, value in state.items()}

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The optimizer's parameter groups, with the parameters on the device."""
        return self._optimizer.param_groups

    @property
    def state(self) -> Mapping[Any, Any]:  # type: ignore[override]
        """The states by parameter in host memory."""
        return self._optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self._optimizer.defaults

    @property
    def stepped_parameters(self) -> list[Tensor]:
        """The parameters of the groups, in host memory."""
        parameters = (parameter for group in self.param_groups for parameter in group["params"])
        return [self._copies.get(parameter, parameter) for parameter in parameters]

    def drop_states(self, parameters: Iterable[Tensor]) -> None:
        """Free the copies and states of parameters that are not in the groups during a step."""
        for parameter in parameters:
            self._optimizer.state.pop(self._copies.pop(parameter, parameter), None)
            self._versions.pop(parameter, None)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Update every parameter that has a gradient, and release the gradients on the device."""
        for parameter, copy in self._copies.items():
            if parameter._version != self._versions[parameter]:
                copy.copy_(parameter)  # the parameter has changed since the last step: a checkpoint was loaded
            if parameter.grad is not None:
                copy.grad, parameter.grad = parameter.grad.to(HOST), None
        with self._host_parameters():
            self._optimizer.step()
        for parameter, copy in self._copies.items():
            if copy.grad is not None:
                parameter.copy_(copy)
                copy.grad = None
            self._versions[parameter] = parameter._version

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of an update without a step."""
        self._optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the same state dict as without offload, so that training can resume with and without offload."""
        with self._host_parameters():
            return self._optimizer.state_dict()

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Load states into host memory."""
        with self._host_parameters():
            self._optimizer.load_state_dict(saved)

    @contextlib.contextmanager
    def _host_parameters(self) -> Iterator[None]:
        """Use the copies in host memory as the optimizer's parameters."""
        for group in self._optimizer.param_groups:
            group["params"] = [self._copies.get(parameter, parameter) for parameter in group["params"]]
        device = {copy: parameter for parameter, copy in self._copies.items()}
        try:
            yield
        finally:
            # The groups are read again, because loading a state replaces them.
            for group in self._optimizer.param_groups:
                group["params"] = [device.get(parameter, parameter) for parameter in group["params"]]


def block_parameters_on_host(model: nn.Module, blocks: Sequence[nn.Module]) -> set[nn.Parameter]:
    """Return the parameters of `blocks`, which `copy_weights_on_use` needs in host memory.

    Raises UsageError if there are no blocks, or if a block shares a weight with a module outside of all blocks, which
    would need the weight both on the device and in host memory.
    """
    if not blocks:
        raise UsageError("offload=parameters: the model has no blocks", hint="offload=optimizer")
    block_parameters = {parameter for block in blocks for parameter in block.parameters()}
    block_modules = {module for block in blocks for module in block.modules()}
    shared = [
        f"{module_name}.{name}"
        for module_name, module in model.named_modules()
        for name, parameter in module._parameters.items()
        if module not in block_modules and parameter in block_parameters
    ]
    if shared:
        raise UsageError(
            "offload=parameters: a block's weights are also used outside of the block",
            problems=shared,
            hint="offload=optimizer",
        )
    return block_parameters


def move(model: nn.Module, recipe: object, settings: Settings, device: torch.device) -> None:
    """Move the model to `device`, except the weights that `offload=parameters` copies there when they are needed.

    Weights whose casts are deferred get their values, one after the other. For training on a CPU nothing is offloaded.
    Call it before checkpointing.

    Raises UsageError as `block_parameters_on_host` does.
    """
    if settings.offload != "parameters" or device == HOST:
        deferred_casts.move([model], device)
        model.to(device)  # some classes note their device there, such as Lightning's
        return
    blocks = checkpointing.blocks(model, recipe)
    host_parameters = {id(parameter) for parameter in block_parameters_on_host(model, blocks)}
    deferred_casts.move([model], device, staying=host_parameters)
    copy_weights_on_use(blocks, device, on_copy=lambda _: None)


def offloaded_optimizer(optimizer: Optimizer, settings: Settings) -> Optimizer:
    """Return the optimizer that makes the steps: a `HostOptimizer` if something is offloaded.

    Raises UsageError for bitsandbytes' states, whose kernels and pages need the device.
    """
    if settings.offload == "no":
        return optimizer
    if eightbit.is_bitsandbytes(optimizer):
        raise UsageError(
            f"offload={settings.offload}: bitsandbytes' optimizers step on the device",
            hint="offload=no with optimizer_states=paged_8bit, or optimizer_states=own",
        )
    return HostOptimizer(optimizer)


def on_device(optimizer: Any) -> Optimizer:
    """Return the optimizer whose steps are made in host memory, or else the optimizer itself."""
    return optimizer._optimizer if isinstance(optimizer, HostOptimizer) else optimizer


def stepped_parameters(optimizer: Any) -> list[Tensor]:
    """Return the parameters that the steps of an optimizer update, in the memory of its states, in their order."""
    if hasattr(optimizer, "stepped_parameters"):
        own: list[Tensor] = optimizer.stepped_parameters
        return own
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def drop_states(optimizer: Any, parameters: Iterable[Tensor]) -> None:
    """Free the states of parameters that another process updates; Adagrad creates them in its constructor."""
    if isinstance(optimizer, HostOptimizer):
        optimizer.drop_states(parameters)
        return
    for parameter in parameters:
        optimizer.state.pop(parameter, None)


def copy_weights_on_use(blocks: Sequence[nn.Module], device: torch.device | str, *, on_copy: OnCopy) -> None:
    """Copy the weights of `blocks`, which are in host memory, to `device` for each forward, and release them after it.

    For backward they are copied again: one at a time when an operator needs them, or the whole block if it is
    recomputed. Gradients go to host memory as they are computed. Apply it before checkpointing, so that recomputation
    includes the copies. Autocast's copies of weights are saved for backward like other activations.
    """
    for block in blocks:
        changed: Any = block
        changed.forward = _forward_with_copies(block, device, on_copy)


def _forward_with_copies(block: nn.Module, device: torch.device | str, on_copy: OnCopy) -> Callable[..., Any]:
    # transformers' layers wrap their forward in checkpointing code, which would not include the copies.
    unwrapped = getattr(type(block).forward, "__wrapped__", None)
    forward = functools.partial(unwrapped, block) if unwrapped else block.forward

    @functools.wraps(block.forward)
    def forward_with_copies(*args: Any, **kwargs: Any) -> Any:
        with _copied_weights(block, device, on_copy) as parameters:
            # A checkpointed block saves none of its tensors, and its own hooks must not be replaced.
            if checkpointing.is_recomputed(block):
                return forward(*args, **kwargs)
            with saved_tensors_hooks(_make_pack_hook(parameters), _make_unpack_hook(device, on_copy)):
                return forward(*args, **kwargs)

    return forward_with_copies


@contextlib.contextmanager
def _copied_weights(block: nn.Module, device: torch.device | str, on_copy: OnCopy) -> Iterator[dict[int, Tensor]]:
    """Put copies of the block's weights on the device; yield the parameters by the address of their copy's storage."""
    copies: dict[nn.Parameter, Tensor] = {}
    for parameter in block.parameters():  # before any of them is replaced: a copy may run out of memory
        copies[parameter] = parameter.to(device, copy=True)
        on_copy(copies[parameter])
    originals: list[tuple[dict[str, Any], dict[str, nn.Parameter | None]]] = []
    for module in block.modules():
        slots: dict[str, Any] = module._parameters
        originals.append((slots, dict(slots)))
        slots.update({name: copies[own] for name, own in slots.items() if own is not None})
    # Layers of cuDNN move their weights into one storage. The previous storages stay alive for the time of the forward,
    # since the address of a freed one would be that of an activation.
    storages = [(tensor.untyped_storage(), parameter) for parameter, tensor in copies.items()]
    try:
        yield {storage._cdata: parameter for storage, parameter in storages}
    finally:
        for slots, own in originals:
            slots.update(own)
        for module in block.modules():
            if isinstance(module, nn.RNNBase):
                module._init_flat_weights()  # torch's list of the weights, which would keep the copies alive


def _make_pack_hook(parameters: dict[int, Tensor]) -> Callable[[Tensor], Any]:
    def pack(saved: Tensor) -> Any:
        parameter = parameters.get(saved.untyped_storage()._cdata)
        if parameter is None:
            return saved
        return parameter, saved.size(), saved.stride(), saved.storage_offset()

    return pack


def _make_unpack_hook(device: torch.device | str, on_copy: OnCopy) -> Callable[[Any], Tensor]:
    def unpack(packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        parameter, *view = packed
        weight: Tensor = parameter.detach().to(device, copy=True)
        on_copy(weight)
        return weight.as_strided(*view)

    return unpack


def _to_host(value: Any) -> Any:
    return value.to(HOST) if isinstance(value, Tensor) else value
