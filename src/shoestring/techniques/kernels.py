"""The implementation of an optimizer's step: one tensor at a time, many tensors at once, or one fused kernel."""

from __future__ import annotations

from typing import get_args

import torch
from torch import nn
from torch.optim import Optimizer

from shoestring.base.errors import UsageError
from shoestring.base.settings import Kernel

_FLAGS = ("foreach", "fused")

_FUSED_ON_CUDA = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
"""The optimizers that have a fused kernel on CUDA: torch's `native_functions.yaml`, `_fused_*_`. That of Adagrad is for
CPUs."""


def choose(optimizer: Optimizer, kernel: Kernel | None, *, foreach_by_default: bool = False) -> None:
    """Set the flags of every parameter group, before the first step, which creates the states.

    With None the recipe's choice or else torch's default applies. With `foreach_by_default` the default is the one that
    torch has on CUDA, for simulated parameters that torch does not recognize as CUDA parameters.

    Raises UsageError for a kernel that the optimizer does not have there.
    """
    if kernel is None:
        if foreach_by_default:
            _apply_cuda_default(optimizer)
        return
    kernels = available(optimizer, on_gpu=foreach_by_default or _is_on_gpu(optimizer))
    if kernel not in kernels:
        raise UsageError(
            f"optimizer_kernel={kernel}: {type(optimizer).__name__} has {', '.join(kernels)}",
            hint=f"optimizer_kernel={kernels[-1]}",
        )
    for group in optimizer.param_groups:
        group.update({flag: flag == kernel for flag in _FLAGS if flag in group})


def available(optimizer: Optimizer, *, on_gpu: bool = False) -> list[Kernel]:
    """Return the kernels that the optimizer has, for parameters on a GPU or on a CPU."""
    lacks_fused = on_gpu and isinstance(optimizer, torch.optim.Adagrad)
    return [
        kernel
        for kernel in get_args(Kernel)
        if kernel not in _FLAGS
        or (all(kernel in group for group in optimizer.param_groups) and not (kernel == "fused" and lacks_fused))
    ]


def can_be_fused(optimizer: Optimizer, model: nn.Module) -> bool:
    """Return whether one fused kernel can update all weights on a GPU, and the recipe has not chosen another one."""
    return (
        type(optimizer) in _FUSED_ON_CUDA
        and all(group[flag] is None for group in optimizer.param_groups for flag in _FLAGS)
        and not any(group.get("differentiable") for group in optimizer.param_groups)
        and all(weight.is_floating_point() for group in optimizer.param_groups for weight in group["params"])
        and not any(getattr(module, "sparse", False) is True for module in model.modules())  # sparse gradients
    )


def is_batched(optimizer: Optimizer) -> bool:
    """Return whether the step updates many tensors at once, by the recipe's choice or by torch's default on a GPU."""
    if any(group.get("foreach") or group.get("fused") for group in optimizer.param_groups):
        return True
    has_default = not isinstance(optimizer, torch.optim.Adafactor)
    return has_default and any(
        group.get("foreach", False) is None and not group.get("differentiable") and group["params"][0].is_cuda
        for group in optimizer.param_groups
    )


def _is_on_gpu(optimizer: Optimizer) -> bool:
    return any(parameter.is_cuda for group in optimizer.param_groups for parameter in group["params"])


def _apply_cuda_default(optimizer: Optimizer) -> None:
    """Select foreach unless the recipe has chosen (torch's `optim/optimizer.py: _default_to_fused_or_foreach`)."""
    if isinstance(optimizer, torch.optim.Adafactor):
        return  # the only optimizer that defaults to one tensor at a time (`optim/_adafactor.py: adafactor`)
    for group in optimizer.param_groups:
        if group.get("foreach", False) is None and not group.get("fused") and not group.get("differentiable"):
            group["foreach"] = True
