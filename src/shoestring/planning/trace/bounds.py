"""The largest results of operators whose output size depends on values: a mask of `n` elements selects at most `n`.

Fake tensors have no values, so torch refuses these operators. Here each returns a result of the largest possible size;
what follows, backward included, is then traced with that size, and the estimates are upper ones.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from shoestring.planning.trace.places import is_own, python_syntax
from shoestring.planning.trace.record import UPPER_ESTIMATE

_ATEN: Any = torch.ops.aten
_INDEX_BYTES = 8
_INDEXING = (_ATEN.index.Tensor, _ATEN.index_put.default, _ATEN.index_put_.default, _ATEN._index_put_impl_.default)


def largest_result(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, int] | None:
    """Return the largest result of an operator on fake tensors and its number of rows or elements; None for an operator
    whose output size does not depend on values.
    """
    bound = _BOUNDS.get(func)
    if bound is None or (func is _ATEN.index.Tensor and not any(map(is_mask, args[1]))):
        return None
    values = {argument.name: argument.default_value for argument in func._schema.arguments}
    values |= dict(zip(values, args, strict=False)) | kwargs
    result = bound(**values)
    rows = result[0] if isinstance(result, tuple) else result
    return result, rows.shape[values.get("dim") or 0] if rows.dim() else 1


def is_mask(index: Any) -> bool:
    """Return whether an index of `x[index]` is a mask instead of positions."""
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def scratch_bytes(func: Any, args: tuple[Any, ...]) -> int:
    """Return the bytes of the positions that kernels compute from masks (`expandTensors` in torch's
    `aten/src/ATen/native/IndexingUtils.h`; `masked_select` on CUDA is `index`): one for each selected element and
    dimension of its mask.
    """
    if func in _INDEXING:
        masks = [index for index in args[1] if is_mask(index)]
    elif func is _ATEN.masked_select.default:
        masks = [torch.broadcast_tensors(args[0], args[1])[1]]
    else:
        return 0
    return sum(_INDEX_BYTES * mask.numel() * mask.dim() for mask in masks)


def location() -> str:
    """Return `file:line in function` of the recipe's innermost frame, or `backward`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}" if frame else "backward"


def note(operator: str, place: str, rows: int) -> str:
    """Return the note on an operator at `place` that was traced with its largest result of `rows` rows."""
    name = python_syntax(operator) or operator
    return f"{UPPER_ESTIMATE}: the size of {name} at {place} depends on values, and was traced as the largest, {rows}"


def _index(self: Tensor, indices: list[Tensor | None]) -> Tensor:
    """Replace each mask by positions: as many as there are positions in the other indices, or else all of a mask's."""
    tensors = [index for index in indices if index is not None]
    counts = [index.shape[-1] for index in tensors if not is_mask(index) and index.numel() != 1]
    count = min(counts or [mask.numel() for mask in tensors if is_mask(mask)])
    positions: list[Tensor | None] = []
    for index in indices:
        if index is not None and is_mask(index):
            positions += [index.new_empty(count, dtype=torch.int64) for _ in range(index.dim())]
        else:
            positions.append(index)
    result: Tensor = _ATEN.index.Tensor(self, positions)
    return result


def _nonzero(self: Tensor) -> Tensor:
    return self.new_empty_strided((self.numel(), self.dim()), (1, self.numel()), dtype=torch.int64)


def _masked_select(self: Tensor, mask: Tensor) -> Tensor:
    return self.new_empty(math.prod(torch.broadcast_shapes(self.shape, mask.shape)))


def _unique(
    self: Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
    sorted: bool = True,  # noqa: A002, ARG001 - the name of the operator's argument
) -> tuple[Tensor, Tensor, Tensor]:
    """Return as many unique values as there are values, or as rows in the dimension `dim`."""
    values = self.new_empty(self.numel()) if dim is None else self.new_empty(self.shape)
    inverse_shape = self.shape if dim is None else (self.shape[dim],)
    rows = self.numel() if dim is None else self.shape[dim]
    return (
        values,
        self.new_empty(inverse_shape if return_inverse else 0, dtype=torch.int64),
        self.new_empty(rows if return_counts else 0, dtype=torch.int64),
    )


_BOUNDS: dict[Any, Callable[..., Any]] = {
    _ATEN.index.Tensor: _index,
    _ATEN.nonzero.default: _nonzero,
    _ATEN.masked_select.default: _masked_select,
    _ATEN._unique2.default: _unique,
    _ATEN.unique_dim.default: _unique,
    _ATEN.unique_consecutive.default: _unique,
}
"""The largest result of each operator, computed from its arguments by name."""
