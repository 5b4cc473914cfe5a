"""What the record has of an operator's call: its work, its bytes and its kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from shoestring.base.settings import Precision
from shoestring.planning.trace import products, recurrent
from shoestring.planning.trace.record import Op

_PRECISIONS: dict[torch.dtype, Precision] = {torch.float16: "fp16", torch.bfloat16: "bf16"}

# Operators that read only as much of their first operand as they return.
_GATHERS = {"aten::embedding", "aten::index", "aten::index_select", "aten::gather"}


def operator(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
    read: list[Tensor],
    written: list[Tensor],
) -> Op:
    """Return the record of a call that read and wrote these tensors on the device."""
    if func._schema.name in _GATHERS:
        read = written
    if func._schema.name == "aten::copy_" and len(read) == 1 and any(read[0] is target for target in written):
        read = []  # the target alone was found, so the source is in host memory
    count = None if products.shares_heads(func, args) else flop_registry.get(func._overloadpacket)
    shape = products.shape(func, args, result)
    flops = int(count(*args, **kwargs, out_val=result)) if count else 0
    precision: Precision = next((name for x in read if (name := _PRECISIONS.get(x.dtype))), "fp32")
    is_recurrent = func in (recurrent.FORWARD, recurrent.BACKWARD)
    launches = recurrent.launches(*args) if is_recurrent else products.launches(func, args)
    flops = products.correct_flops(func, args, kwargs, flops, shape)
    return Op(func.name(), flops, _size(read) + _size(written), precision, launches, 0, shape)


def _size(group: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in group)


@cache
def only_allocates(func: Any) -> bool:
    name: str = func._schema.name
    return name.removeprefix("aten::").removeprefix("new_").startswith("empty")


@cache
def written_arguments(func: Any) -> list[Callable[[tuple[Any, ...], dict[str, Any]], Any]]:
    """Return a getter for each argument that the operator writes to."""

    def make_getter(index: int, name: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
        return lambda args, kwargs: args[index] if index < len(args) else kwargs.get(name)

    return [
        make_getter(index, argument.name)
        for index, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
