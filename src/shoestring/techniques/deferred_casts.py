"""Weights that are cast to another type when they are moved to the device, not before.

The weights of a model that was read from safetensors are views of the mapped files, whose pages the operating system
takes back when memory is short. A cast copies them to memory of the process. Casts that wait for the move need this
memory for one weight at a time, or for one block if its weights are streamed (`streaming/placement.py`).

Until then a weight has the shape and the type that it will have, and no values: all its elements are one number in
memory, so code that reads types and shapes, such as that of adapters, sees no difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from shoestring.techniques.freed_memory import return_freed_memory

_SOURCE = "_deferred_cast"
"""The attribute of a parameter with its values before the casts, and the types to which they are cast in turn."""

_IS_CAST = "_is_cast"
"""The attribute of a parameter whose values were cast at once, to memory of the process."""

_RETURNED_AT_ONCE = 16 * 2**20
"""The bytes of weights that are moved between two returns of freed memory, each of which searches all of it."""


def cast(parameter: nn.Parameter, dtype: torch.dtype, *, is_deferred: bool) -> None:
    """Cast a parameter to another type; if that `is_deferred`, its values are cast by `convert`."""
    if not is_deferred:
        convert(parameter)
        if parameter.dtype != dtype:
            parameter.data = parameter.data.to(dtype)
            setattr(parameter, _IS_CAST, True)
        return
    source, dtypes = getattr(parameter, _SOURCE, (parameter.data, ()))
    if parameter.dtype != dtype:
        setattr(parameter, _SOURCE, (source, (*dtypes, dtype)))
        if source.is_meta:  # of a model that is planned: its strides are those of the weight
            parameter.data = torch.empty_like(source, dtype=dtype)
        else:
            parameter.data = torch.empty((), dtype=dtype, device=source.device).expand(source.shape)


def carry_over(original: nn.Parameter, replacement: Any) -> None:
    """Let a parameter that was made of the data of another one have the deferred casts of that."""
    if hasattr(original, _SOURCE):
        setattr(replacement, _SOURCE, getattr(original, _SOURCE))


def stand_for(original: nn.Parameter, placeholder: Any, *, is_copied: bool) -> None:
    """Let the placeholder of a packed weight have the host memory of the weight, which may be copied before."""
    setattr(placeholder, _SOURCE, getattr(original, _SOURCE, (original.data, ())))
    if is_copied or hasattr(original, _IS_CAST):
        setattr(placeholder, _IS_CAST, True)


class HostMemory(NamedTuple):
    """The memory of the process that a parameter has on its way to the device, in bytes."""

    before: int
    """Until it is given its values."""
    converting: int
    """The most in addition while it is given its values."""
    after: int
    """From then until it is moved."""


def host_memory(parameter: nn.Parameter, *, is_mapped: bool) -> HostMemory:
    """Return the host memory of a parameter before it is moved; `is_mapped`: its first values are in mapped files."""
    source, dtypes = getattr(parameter, _SOURCE, (parameter, ()))
    before = 0 if is_mapped and not hasattr(parameter, _IS_CAST) else source.nbytes
    sizes = [source.numel() * dtype.itemsize for dtype in dtypes]
    if not sizes:
        return HostMemory(before, 0, before)
    # The first values are released by the first cast, those between two casts by the second.
    return HostMemory(before, max(sizes[0], *(sum(pair) - before for pair in pairwise(sizes)), 0), sizes[-1])


def convert(tensor: Tensor) -> None:
    """Give a parameter the values whose casts were deferred; nothing for any other tensor."""
    if not hasattr(tensor, _SOURCE):
        return
    value, dtypes = getattr(tensor, _SOURCE)
    delattr(tensor, _SOURCE)
    for dtype in dtypes:
        value = value.to(dtype)
    tensor.data = value


def move(
    modules: Iterable[nn.Module], device: torch.device, *, staying: Set[int] = frozenset(), recurse: bool = True
) -> None:
    """Give the tensors of modules their values and move them to `device`, one after the other.

    Those whose `id` is in `staying` are not moved. Without `recurse`, the tensors of the modules' children are left.
    """
    moved_bytes = 0

    def moved(tensor: Tensor) -> Tensor:
        nonlocal moved_bytes
        moved_bytes += tensor.nbytes
        if moved_bytes >= _RETURNED_AT_ONCE:
            moved_bytes = 0
            return_freed_memory()
        convert(tensor)
        return tensor if id(tensor) in staying else tensor.to(device)

    for module in modules:
        module._apply(moved, recurse=recurse)
    return_freed_memory()


def convert_all(model: nn.Module) -> nn.Module:
    """Give all parameters of a model that is not moved their values, and return it."""
    for parameter in model.parameters():
        convert(parameter)
    return model


def deferrable(model: nn.Module) -> set[nn.Parameter]:
    """Return the parameters whose values nothing needs before the model is moved: matrices and stacks of them.

    Weights of convolutions may be put into another order before. The adapters of embeddings to which a recipe has added
    rows copy these rows. Subclasses of tensors are cast in ways of their own.
    """
    added_rows: Mapping[str, Any] = getattr(model, "added_rows", None) or {}
    copied = {weight for name in added_rows for weight in model.get_submodule(name).parameters()}
    plain = (weight for weight in model.parameters() if type(weight) is nn.Parameter)
    return {weight for weight in plain if weight.dim() in (2, 3)} - copied
