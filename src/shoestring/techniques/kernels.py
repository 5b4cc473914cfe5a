"""How an optimizer runs its step: for one tensor after another, for many at once, or in one kernel."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor
from torch.optim import Optimizer

from shoestring.errors import UsageError
from shoestring.settings import Kernel

_FLAGS = ("foreach", "fused")


def choose(optimizer: Optimizer, kernel: Kernel | None, *, many_by_default: bool = False) -> None:
    """Set the flags of every parameter group; before the first step, which makes the states.

    None leaves what the recipe says and, where that is nothing, what torch chooses; `many_by_default` decides in
    torch's place as it does on CUDA, for parameters whose type or device hides that they are there.

    Raises UsageError for a kernel that the optimizer has not.
    """
    if kernel is None:
        if many_by_default:
            _as_on_cuda(optimizer)
        return
    there = available(optimizer)
    if kernel not in there:
        raise UsageError(
            f"optimizer_kernel={kernel}: {type(optimizer).__name__} has {', '.join(there)}",
            hint=f"optimizer_kernel={there[-1]}",
        )
    for group in optimizer.param_groups:
        group.update({flag: flag == kernel for flag in _FLAGS if flag in group})
    if kernel == "fused":
        # Adagrad has made its states already, and one kernel reads the count of steps where the parameter is.
        for parameter, state in optimizer.state.items():
            if isinstance(state.get("step"), Tensor):
                state["step"] = state["step"].to(parameter.device)


def available(optimizer: Optimizer) -> list[Kernel]:
    """The kernels that the optimizer has."""
    return [
        kernel
        for kernel in get_args(Kernel)
        if kernel not in _FLAGS or all(kernel in group for group in optimizer.param_groups)
    ]


def is_batched(optimizer: Optimizer) -> bool:
    """Whether the step works on many tensors at once, by the recipe's choice or, on a GPU, by torch's."""
    if any(group.get("foreach") or group.get("fused") for group in optimizer.param_groups):
        return True
    by_default = not isinstance(optimizer, torch.optim.Adafactor)
    return by_default and any(
        group.get("foreach", False) is None and not group.get("differentiable") and group["params"][0].is_cuda
        for group in optimizer.param_groups
    )


def _as_on_cuda(optimizer: Optimizer) -> None:
    """Many at once unless something else was said (torch's `optim/optimizer.py: _default_to_fused_or_foreach`)."""
    if isinstance(optimizer, torch.optim.Adafactor):
        return  # alone of all it goes tensor by tensor unless told otherwise (`optim/_adafactor.py: adafactor`)
    for group in optimizer.param_groups:
        if group.get("foreach", False) is None and not group.get("fused") and not group.get("differentiable"):
            group["foreach"] = True
