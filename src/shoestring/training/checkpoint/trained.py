"""The part of a model's state that training changes. Frozen weights come from the model's source and are not saved,
except those that the recipe changes itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.training.checkpoint.divided import whole

_SAMPLED_VALUES = 64
"""The number of values at either end of a frozen weight that enter its digest."""


def trained_state(model: nn.Module, changed: Container[str] = ()) -> dict[str, Any]:
    """Return the `state_dict` without frozen weights and their companions (such as the scales of a 4-bit weight).

    Those that the recipe has `changed` itself, by their names, are included.
    """
    frozen = frozen_parameters(model)
    frozen = {name: parameter for name, parameter in frozen.items() if name not in changed}
    prefixes = tuple(f"{name}." for name in frozen)
    return {
        name: value
        for name, value in model.state_dict().items()
        if name not in frozen and not (prefixes and name.startswith(prefixes))
    }


def state_like(model: nn.Module, saved: Any) -> dict[str, Any]:
    """Return the state of the model that a checkpoint with the section `saved` of it has to contain."""
    section = saved if isinstance(saved, Mapping) else {}
    return {**trained_state(model, section), **saved_attributes(model, section)}


def attribute_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors in attributes of the model's modules that are neither parameters nor buffers, by name.

    Tensors with a gradient are results of a forward pass, and so are the weights that hooks of torch compute.
    """
    return {
        f"{path}.{name}".removeprefix("."): value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor) and not value.requires_grad and name not in computed_weights(module)
    }


def computed_weights(module: nn.Module) -> list[str]:
    """Return the names of the weights that the older `weight_norm` and `spectral_norm` of torch compute in forward."""
    hooks = [hook for hook in module._forward_pre_hooks.values() if type(hook).__module__.startswith("torch.")]
    return [hook.name for hook in hooks if hasattr(hook, "name")]


def saved_attributes(model: nn.Module, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of the section `saved` that belong to attributes: a module has a tensor there, or None."""
    modules = dict(model.named_modules())
    attributes = {}
    for name, value in saved.items():
        path, _, attribute = name.rpartition(".")
        current = vars(modules[path]).get(attribute, ()) if path in modules else ()
        if isinstance(value, Tensor) and (current is None or isinstance(current, Tensor)):
            attributes[name] = value
    return attributes


@torch.no_grad()
def load_attributes(model: nn.Module, saved: Mapping[str, Any]) -> None:
    """Load those tensors of the section `saved` into the attributes of the model, which `load_state_dict` ignores."""
    modules = dict(model.named_modules())
    device = _device_of_computation(model)
    for name, value in saved_attributes(model, saved).items():
        path, _, attribute = name.rpartition(".")
        current = getattr(modules[path], attribute)
        if current is not None and (current.shape, current.dtype) == (value.shape, value.dtype):
            current.copy_(value)
        else:
            setattr(modules[path], attribute, value.to(device if current is None else current.device, copy=True))


def reset_attributes(model: nn.Module, initial: nn.Module, names: Iterable[str]) -> None:
    """Set attributes of the model, which have tensors now, to what `initial` has there: no tensor, such as None."""
    modules, before = dict(model.named_modules()), dict(initial.named_modules())
    for name in names:
        path, _, attribute = name.rpartition(".")
        if attribute in vars(before[path]):
            setattr(modules[path], attribute, vars(before[path])[attribute])
        else:
            delattr(modules[path], attribute)


def _device_of_computation(model: nn.Module) -> torch.device:
    """Return the device that a model computes on: blocks that are offloaded have their weights in host memory."""
    devices = [tensor.device for tensor in (*model.parameters(), *model.buffers())]
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))


def frozen_digest(model: nn.Module) -> str | None:
    """Return a digest of the frozen weights: names, shapes, and first and last values; None if there are none.

    It leaves out the other values because reading billions of them would delay a resume.
    """
    frozen = frozen_parameters(model)
    if not frozen:
        return None
    digest = hashlib.sha256()
    for name, weight in sorted(frozen.items()):
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}\n".encode())
        digest.update(_end_values(weight))
    return digest.hexdigest()[:16]


def frozen_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that are not trained, under each of their names; one tied to a trained one is trained."""
    named_parameters = list(_named_parameters(model))
    trained = {id(parameter) for _, parameter in named_parameters if parameter.requires_grad}
    return {name: parameter for name, parameter in named_parameters if id(parameter) not in trained}


def _named_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)


def _end_values(weight: Tensor) -> bytes:
    flat = whole(weight.detach()).flatten()
    ends = torch.cat([flat[:_SAMPLED_VALUES], flat[-_SAMPLED_VALUES:]]).cpu().contiguous()
    return bytes(ends.view(torch.uint8).numpy().tobytes())
