"""Detection: what DETR and its relatives in transformers compute from values on the host.

They assign predicted objects to true ones, their encoders check in training whether all values are finite, and some
compare the predictions of one layer with those of another.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from shoestring.planning.trace.values import assumed


def set_up() -> None:
    """Replace the assignment by one of the same size, and let what is read decide for the usual case, in the losses
    and the checks of such models that the recipe has imported.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("transformers.loss."):
            if hasattr(module, "linear_sum_assignment"):
                module.__dict__["linear_sum_assignment"] = _assign_in_order
            for kind in _classes(name, module, "Loss"):
                if issubclass(kind, nn.Module):
                    kind.to = _move
                    # The number of boxes, by which the losses are divided, is read from the device.
                    _run_within(kind, assumed)
                    _run_within(kind, _UsualValues)
        if _DETECTORS.match(name):
            for kind in _classes(name, module, "EncoderLayer", "AIFILayer"):
                _run_within(kind, _UsualValues)
            if hasattr(module, _CHECK):  # that the sizes of layers add up to the number of positions
                module.__dict__[_CHECK] = _pass
            if (make_groups := module.__dict__.get(_DENOISING)) is not None:
                module.__dict__[_DENOISING] = _within(make_groups, _UsualValues)


_CHECK = "torch_compilable_check"
"""The function of transformers that raises unless a condition is true."""
_DENOISING = "get_contrastive_denoising_training_group"
"""The function that adds noisy copies of the true objects in training: it splits the indices of those that are meant to
be recognized, of which a trace has as many as there may be."""


_DETECTORS = re.compile(r"transformers\.models\.\w+\.modeling_\w*(detr|d_fine|deim)")
"""The modules of DETR and its relatives."""


def _classes(name: str, module: Any, *endings: str) -> list[Any]:
    """Return the classes that the module defines under such names."""
    return [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == name and kind.__name__.endswith(endings)
    ]


def _run_within(kind: Any, context: Callable[[], AbstractContextManager[Any]]) -> None:
    """Let the class's `forward` run within the context."""
    kind.forward = _within(kind.forward, context)


def _within(function: Callable[..., Any], context: Callable[[], AbstractContextManager[Any]]) -> Callable[..., Any]:
    """Return a function that runs within the context."""

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        with context():
            return function(*arguments, **options)

    return run


def _move(module: nn.Module, device: torch.device) -> nn.Module:
    """Move the tensors of a loss that each forward makes anew. `nn.Module.to` swaps fake parameters in place, which
    fails if the mode of fake tensors still refers to them.
    """
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                moved = parameter.detach().to(device)
                part._parameters[name] = nn.Parameter(moved, requires_grad=parameter.requires_grad)
        for name, buffer in part._buffers.items():
            part._buffers[name] = None if buffer is None else buffer.to(device)
    return module


def _pass(condition: Any, *_: Any, **__: Any) -> None:
    """Compute whether a condition is true, as the check does, without reading it."""
    if isinstance(condition, Tensor):
        condition.all()


def _assign_in_order(costs: Tensor) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return as many pairs of a row and a column as scipy's `linear_sum_assignment`."""
    count = min(costs.shape)
    return np.arange(count), np.arange(count)


class _UsualValues(TorchDispatchMode):
    """A mode in which what a model reads to decide what it does has the value of the usual case.

    Conditions are true: all values are finite, no box is empty, and some predictions are matched and some are not.
    Tensors are equal if they are the same one. A tensor of as many rows as there may be has those of the parts into
    which it is split.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].dtype == torch.bool:
            return True
        if func is torch.ops.aten.equal.default:
            return args[0].untyped_storage()._cdata == args[1].untyped_storage()._cdata
        is_split_by_rows = func is torch.ops.aten.split_with_sizes.default and len(args) == 2
        if is_split_by_rows and len(args[0]) > sum(args[1]):
            args = (args[0][: sum(args[1])], *args[1:])
        return func(*args, **(kwargs or {}))
