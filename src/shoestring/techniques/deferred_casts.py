"""Weights that are cast to another type when they are moved to the device, not before.

The weights of a model that was read from safetensors are views of the mapped files, whose pages the operating system
takes back when memory is short. A cast copies them to memory of the process. If the blocks of a model are moved one by
one (`streaming/placement.py`), casts that wait for the move need this memory for one block at a time.

Until then a weight has the shape and the type that it will have, and no values: all its elements are one number in
memory, so code that reads types and shapes, such as that of adapters, sees no difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

_SOURCE = "_deferred_cast"
"""The attribute of a parameter with its values before the casts, and the types to which they are cast in turn."""


def cast(parameter: nn.Parameter, dtype: torch.dtype, *, is_deferred: bool) -> None:
    """Cast a parameter to another type; if that `is_deferred`, its values are cast by `convert`."""
    if not is_deferred:
        convert(parameter)
        parameter.data = parameter.data.to(dtype)
        return
    source, dtypes = getattr(parameter, _SOURCE, (parameter.data, ()))
    if parameter.dtype != dtype:
        setattr(parameter, _SOURCE, (source, (*dtypes, dtype)))
        parameter.data = torch.empty((), dtype=dtype, device=source.device).expand(source.shape)


def carry_over(original: nn.Parameter, replacement: Any) -> None:
    """Let a parameter that was made of the data of another one have the deferred casts of that."""
    if hasattr(original, _SOURCE):
        setattr(replacement, _SOURCE, getattr(original, _SOURCE))


def convert(tensor: Tensor) -> None:
    """Give a parameter the values whose casts were deferred; nothing for any other tensor."""
    if not hasattr(tensor, _SOURCE):
        return
    value, dtypes = getattr(tensor, _SOURCE)
    delattr(tensor, _SOURCE)
    for dtype in dtypes:
        value = value.to(dtype)
    tensor.data = value


def convert_all(model: nn.Module) -> nn.Module:
    """Give all parameters of a model that is not moved their values, and return it."""
    for parameter in model.parameters():
        convert(parameter)
    return model


def deferrable(model: nn.Module) -> set[nn.Parameter]:
    """Return the parameters whose values nothing needs before the model is moved: matrices and stacks of them.

    Weights of convolutions may be put into another order before. The adapters of embeddings to which a recipe has added
    rows copy these rows.
    """
    added_rows: Mapping[str, Any] = getattr(model, "added_rows", None) or {}
    copied = {weight for name in added_rows for weight in model.get_submodule(name).parameters()}
    return {weight for weight in model.parameters() if weight.dim() in (2, 3)} - copied
