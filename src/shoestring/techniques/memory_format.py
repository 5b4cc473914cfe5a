"""The memory format of images and of the weights of 2-d convolutions.

Shapes, indices and values are the same in both formats; what differs is the order of the elements in memory, and so the
kernels that torch chooses and the rounding of their sums. Tensor cores compute with channels_last: cuDNN transposes
images and weights that are contiguous (NVIDIA, "Convolutional Layers User's Guide", Tensor Layouts In Memory).

Only tensors of four dimensions are converted, as torch's channels_last is defined for them. Those of 3-d convolutions
stay contiguous.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from shoestring.base.errors import UsageError
from shoestring.base.failures import location
from shoestring.base.settings import MemoryFormat

CHANNELS_LAST: MemoryFormat = "channels_last"
_VIEW_ERRORS = ("view size is not compatible", "Cannot view a tensor with shape")
"""Fragments of torch's messages for `view` of a tensor whose elements have another order in memory: of the operator
(`aten/src/ATen/TensorUtils.cpp`) and of fake tensors (`torch/_refs/__init__.py`)."""


def apply(model: nn.Module, memory_format: MemoryFormat | None) -> None:
    """Give the model's parameters and buffers the format, in place; contiguous leaves them as the recipe made them.

    They are those that `model.to(memory_format=torch.channels_last)` converts: floating-point tensors of four
    dimensions. Call it before the optimizer is built, whose states take the order of their parameters.
    """
    if memory_format != CHANNELS_LAST:
        return
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.data = converted(tensor.data, memory_format)


def converted(tensor: Tensor, memory_format: MemoryFormat | None) -> Tensor:
    """Return the tensor, or a copy of it in channels_last if that is the format and the tensor may be of images.

    These have four dimensions (samples, channels, height, width), and are floating-point numbers or bytes, of which
    `.float()` keeps the order.
    """
    is_image = tensor.dim() == 4 and (tensor.is_floating_point() or tensor.dtype == torch.uint8)
    if memory_format != CHANNELS_LAST or not is_image:
        return tensor
    return tensor.contiguous(memory_format=torch.channels_last)


@contextmanager
def explaining_views(memory_format: MemoryFormat | None) -> Iterator[None]:
    """Raise UsageError for a `view` in the recipe's code that this format does not permit."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if memory_format != CHANNELS_LAST or not any(fragment in str(error) for fragment in _VIEW_ERRORS):
            raise
        raise UsageError(
            f"memory_format=channels_last: a view of a tensor{location(error)} needs its elements in the order of its "
            f"indices: {error}",
            hint="call reshape instead of view, which copies where it has to; or set memory_format=contiguous",
        ) from error


class _ReshapingViews(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_shape = not kwargs and not any(isinstance(argument, torch.dtype) for argument in args)
        return _RESHAPES[function](*args) if is_shape and function in _RESHAPES else function(*args, **kwargs)


_RESHAPES: dict[Any, Any] = {Tensor.view: Tensor.reshape, Tensor.view_as: Tensor.reshape_as}


def reshaping_views(memory_format: MemoryFormat | None) -> AbstractContextManager[object]:
    """Return a context in which `view` copies where channels_last does not permit a view, instead of raising.

    It is for evaluations and predictions: they are not traced before a run, so an error in the first one would end the
    run after an epoch. Every call of torch passes through Python there, for which updates have no time.
    """
    return _ReshapingViews() if memory_format == CHANNELS_LAST else nullcontext()


def with_strides(saved: Mapping[str, Any], optimizer: Any) -> dict[str, Any]:
    """Return a state dict of `optimizer` whose tensors have the strides of their parameters, as those have that the
    optimizer creates.

    Files have all tensors contiguous. A kernel for several tensors reads them in the order of their memory (fused), or
    is chosen by their strides (foreach).
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states = {
        index: {name: _with_strides_of(value, parameters[index]) for name, value in state.items()}
        if isinstance(state, dict)
        else state
        for index, state in saved["state"].items()
    }
    return {**saved, "state": states}


def _with_strides_of(value: Any, parameter: Tensor) -> Any:
    if not isinstance(value, Tensor) or value.shape != parameter.shape or parameter.is_contiguous():
        return value
    return torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)
