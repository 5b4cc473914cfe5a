"""Groups of a model's blocks that record the same events when they are called with the same arguments."""

from __future__ import annotations

import functools
import types
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

_INDEX_NAMES = ("layer", "block", "index", "idx")
"""Parts of the names of attributes in which a block or a module of it has the block's index."""
_STATE = ("_parameters", "_buffers", "_modules")
"""Attributes of `nn.Module` that are compared by other means."""
_DEPTH = 4
"""The depth up to which the attributes of objects that are no modules are compared."""


def groups(model: nn.Module, blocks: Sequence[nn.Module], least: int) -> list[list[nn.Module]]:
    """Return the groups of identical blocks with at least `least` members, each in the order of `blocks`.

    Blocks with hooks, and blocks that share parameters with other modules, are in no group.
    """
    shared = _shared_parameters(model, blocks)
    collected: list[list[tuple[int, nn.Module]]] = []
    for index, block in enumerate(blocks):
        if shared.intersection(map(id, block.parameters())) or _has_hooks(block):
            continue
        for group in collected:
            first_index, first = group[0]
            if _are_identical(first, block, (first_index, index)):
                group.append((index, block))
                break
        else:
            collected.append([(index, block)])
    return [[block for _, block in group] for group in collected if len(group) >= least]


def state(block: nn.Module) -> tuple[Any, ...]:
    """Return what may change between the calls of a block and what its events depend on."""
    return (
        [module.training for module in block.modules()],
        [(parameter.requires_grad, parameter.grad is None) for parameter in block.parameters()],
    )


def plain_attributes(block: nn.Module) -> list[dict[str, Any]]:
    """Return the attributes of the block's modules that have numbers, texts and the like."""
    plain = (int, float, str, bool, type(None), torch.dtype)
    return [
        {name: value for name, value in vars(module).items() if isinstance(value, plain)} for module in block.modules()
    ]


def _shared_parameters(model: nn.Module, blocks: Sequence[nn.Module]) -> set[int]:
    """Return the identities of the parameters of more than one block, or of a block and a module outside of blocks."""
    counts = Counter(number for block in blocks for number in {id(parameter) for parameter in block.parameters()})
    inside = {id(module) for block in blocks for module in block.modules()}
    outside = {
        id(parameter)
        for module in model.modules()
        if id(module) not in inside
        for parameter in module._parameters.values()
    }
    return {number for number, count in counts.items() if count > 1} | outside


def _has_hooks(block: nn.Module) -> bool:
    hooks = any(
        value
        for module in block.modules()
        for name, value in vars(module).items()
        if name.endswith("_hooks") and "state_dict" not in name
    )
    return hooks or any(
        parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None)
        for parameter in block.parameters()
    )


def _are_identical(a: nn.Module, b: nn.Module, indices: tuple[int, int]) -> bool:
    names_a, names_b = dict(a.named_modules()), dict(b.named_modules())
    if list(names_a) != list(names_b):
        return False
    for x, y in zip(names_a.values(), names_b.values(), strict=True):
        if type(x) is not type(y) or not _same_tensors(x, y):
            return False
        if not _same_attributes(vars(x), vars(y), indices, _DEPTH):
            return False
    return True


def _same_tensors(a: nn.Module, b: nn.Module) -> bool:
    return _forms(a._parameters) == _forms(b._parameters) and _forms(a._buffers) == _forms(b._buffers)


def _forms(tensors: Mapping[str, Tensor | None]) -> dict[str, Any]:
    return {
        name: None if x is None else (type(x), x.shape, x.stride(), x.dtype, x.requires_grad, x.device)
        for name, x in tensors.items()
    }


def _same_attributes(a: Mapping[str, Any], b: Mapping[str, Any], indices: tuple[int, int], depth: int) -> bool:
    return a.keys() == b.keys() and all(
        _same_value(name, value, b[name], indices, depth) for name, value in a.items() if name not in _STATE
    )


def _same_value(name: Any, a: Any, b: Any, indices: tuple[int, int], depth: int) -> bool:
    """Return whether two values are equal, apart from the index of the block that each belongs to."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    match a:
        case str():
            return a == b or _same_names(a, b, indices)
        case bool() | float() | torch.dtype() | torch.device():
            return bool(a == b)
        case int():
            is_index = isinstance(name, str) and any(part in name for part in _INDEX_NAMES)
            return a == b or (is_index and b - a == indices[1] - indices[0])
        case list() | tuple():
            pairs = zip(a, b, strict=False)
            return len(a) == len(b) and all(_same_value(name, x, y, indices, depth) for x, y in pairs)
        case dict():
            return _same_attributes(a, b, indices, depth)
        case set() | frozenset():
            return bool(a == b)
        case Tensor():
            return _forms({"": a}) == _forms({"": b})
        case nn.Module() | type():
            return not isinstance(a, type)
        case functools.partial():
            return _same_value(name, a.func, b.func, indices, depth)
        case types.FunctionType():
            return a.__code__ is b.__code__
        case types.MethodType():
            return a.__func__ is b.__func__
        case _:
            return not depth or _same_attributes(_vars(a), _vars(b), indices, depth - 1)


def _same_names(a: str, b: str, indices: tuple[int, int]) -> bool:
    """Return whether two names of modules differ only in the index of a block."""
    pairs = [(x, y) for x, y in zip(a.split("."), b.split("."), strict=False) if x != y]
    return (
        a.count(".") == b.count(".")
        and all(x.isdecimal() and y.isdecimal() for x, y in pairs)
        and all(int(y) - int(x) == indices[1] - indices[0] for x, y in pairs)
    )


def _vars(value: object) -> dict[str, Any]:
    return getattr(value, "__dict__", {})
