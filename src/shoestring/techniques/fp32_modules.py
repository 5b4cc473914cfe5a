"""Modules that compute in fp32 although the precision of the run is fp16, because their results overflow in fp16.

fp16 ends at 65,504. A model that was trained in bf16, whose range is that of fp32, may exceed it in a few modules. In
those, autocast is disabled, and inputs and 16-bit weights are cast to fp32; the results stay in fp32, so that what is
added to them does not overflow either. Parameters keep their type, so states and their names do not change.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.base.errors import UsageError, nearest
from shoestring.techniques import trees

_HALF = (torch.float16, torch.bfloat16)
_COMPUTE_TYPES = ("compute_dtype", "compute")
"""The attributes with the type in which 4-bit layers compute: bitsandbytes' layer, and the placeholder of estimates."""
_NUMBER = re.compile(r"(?<![^.])[0-9]+(?![^.])")
"""A number between the dots of a module's name: its place in a list of modules."""


def apply(model: nn.Module, setting: str | None) -> int:
    """Make the modules that the setting names compute in fp32; return their number.

    `setting` is the value of `Settings.fp32_modules`: names of `model.named_modules()` separated by commas, in which
    `*` stands for any number. Apply it after everything else: compiled code and recomputed blocks run inside. Modules
    that compute in fp32 already are left as they are.

    Raises UsageError for names that the model does not have.
    """
    chosen = find(model, setting)
    for module in chosen.values():
        _patch(module)
    return len(chosen)


def find(model: nn.Module, setting: str | None) -> dict[str, nn.Module]:
    """Return the modules that `setting` names, in the order of the model's. Raises UsageError as `apply` does."""
    patterns = [text.strip() for text in (setting or "").split(",") if text.strip()]
    modules = {name: module for name, module in model.named_modules() if name} if patterns else {}
    unknown = [pattern for pattern in patterns if not any(_matches(pattern, name) for name in modules)]
    if unknown:
        raise UsageError(
            f"fp32_modules={setting}: {type(model).__name__} has no such modules",
            problems=[f"{pattern}: {nearest(pattern, list(modules)[:1000])}" for pattern in unknown],
            hint="name modules as model.named_modules() does, with * for a number: model.layers.*.mlp.down_proj",
        )
    return {name: module for name, module in modules.items() if any(_matches(pattern, name) for pattern in patterns)}


def as_setting(model: nn.Module, names: Iterable[str]) -> str:
    """Return the setting that chooses exactly the modules called `names`.

    Names that differ in numbers alone are one pattern, if all modules of the model that match it are chosen.
    """
    chosen = list(names)
    every = [name for name, _ in model.named_modules()]
    texts: dict[str, None] = {}
    for name in chosen:
        pattern = _NUMBER.sub("*", name)
        matches = [other for other in every if _matches(pattern, other)]
        texts[pattern if len(matches) > 1 and set(matches) <= set(chosen) else name] = None
    return ",".join(texts)


def is_replaced_otherwise(module: nn.Module) -> bool:
    """Return whether something besides `apply` has replaced the module's forward."""
    forward = vars(module).get("forward")
    return (getattr(forward, "previous", None) if _is_applied(forward) else forward) is not None


@contextlib.contextmanager
def applied(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Make the `modules` compute in fp32 while the context is open."""
    with contextlib.ExitStack() as stack:
        for module in modules:
            for patched in _patch(module):
                stack.callback(_unpatch, patched)
        yield


def _is_applied(forward: object) -> bool:
    return hasattr(forward, "computes_in_fp32")


def _matches(pattern: str, name: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", "[0-9]+"), name) is not None


def _patch(module: nn.Module) -> list[nn.Module]:
    """Replace the forward of the module, and of the modules in it whose own weights have to be cast.

    Returns the modules whose forward was replaced.
    """
    patched = []
    for part in module.modules():
        if (part is module or _computes_in_16_bits(part)) and not _is_applied(part.forward):
            changed: Any = part
            changed.forward = _fp32_forward(part)
            patched.append(part)
    return patched


def _unpatch(module: nn.Module) -> None:
    changed: Any = module
    previous = changed.forward.previous
    if previous is None:
        del changed.forward
    else:
        changed.forward = previous


def _computes_in_16_bits(module: nn.Module) -> bool:
    weights = module._parameters.values()
    return bool(_compute_types(module)) or any(weight is not None and weight.dtype in _HALF for weight in weights)


def _compute_types(module: nn.Module) -> dict[str, torch.dtype]:
    """Return the 16-bit types in which a 4-bit layer computes, by the attribute that has them."""
    values = {name: vars(module).get(name) for name in _COMPUTE_TYPES}
    return {name: value for name, value in values.items() if isinstance(value, torch.dtype) and value in _HALF}


def _fp32_forward(module: nn.Module) -> Any:
    forward = module.forward

    @functools.wraps(forward)
    def in_fp32(*args: Any, **kwargs: Any) -> Any:
        device_type = _device_type((args, kwargs), module)
        args, kwargs = trees.mapped(_to_fp32, (args, kwargs))
        with torch.autocast(device_type, enabled=False), _fp32_weights(module):
            return forward(*args, **kwargs)

    changed: Any = in_fp32
    changed.computes_in_fp32, changed.previous = True, vars(module).get("forward")
    return in_fp32


@contextlib.contextmanager
def _fp32_weights(module: nn.Module) -> Iterator[None]:
    """Replace the module's own 16-bit weights by copies in fp32, through which gradients flow back to them."""
    # torch's attention passes the weight of its output projection to a function, without calling that module.
    owners = module.modules() if isinstance(module, nn.MultiheadAttention) else [module]
    replaced: list[tuple[dict[str, Any], Mapping[str, Any]]] = []
    for owner in owners:
        slots: dict[str, Any] = owner._parameters
        originals = {name: weight for name, weight in slots.items() if weight is not None and weight.dtype in _HALF}
        if originals:
            slots.update({name: weight.float() for name, weight in originals.items()})
            replaced.append((slots, originals))
        if types := _compute_types(owner):
            vars(owner).update(dict.fromkeys(types, torch.float32))
            replaced.append((vars(owner), types))
    try:
        yield
    finally:
        for attributes, values in replaced:
            attributes.update(values)


def _to_fp32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _HALF else value


def _device_type(inputs: Any, module: nn.Module) -> str:
    """Return the device type that the module computes on: that of its floating-point inputs, or of any tensor."""
    tensors = [leaf for leaf in trees.leaves(inputs) if isinstance(leaf, Tensor)]
    tensors = [*(tensor for tensor in tensors if tensor.is_floating_point()), *tensors, *module.parameters()]
    return tensors[0].device.type if tensors else "cpu"
