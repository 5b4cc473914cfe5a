"""Resetting FSDP2 after an exception within forward or backward.

The exception leaves each module in the state of the interrupted pass: hooks of the next pass then skip collectives, and
gradients are added to those of the interrupted one. It trains other weights, without an error. torch has a public
function for it from 2.13 on. For earlier versions this module sets the private state; it names those with which it was
tried, and with any other one the run returns to its last checkpoint instead.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

VERSIONS = ("2.8",)
"""The versions of torch whose private state was tried."""


def is_supported() -> bool:
    """Return whether FSDP2 of this version of torch can be reset."""
    from torch.distributed.fsdp import FSDPModule

    return hasattr(FSDPModule, "reset_iter_state") or ".".join(torch.__version__.split(".")[:2]) in VERSIONS


def reset(modules: Sequence[Any]) -> None:
    """Bring the fully sharded `modules` of a model, the root at the end, back to the state before forward.

    Their gradients are dropped.
    """
    for parameter in _parameters(modules):
        for name in ("_unsharded_param", "sharded_param"):
            if (tensor := getattr(parameter, name, None)) is not None:
                tensor.grad = None
        parameter.unsharded_accumulated_grad = None
    root = modules[-1]
    if hasattr(root, "reset_iter_state"):
        root.reset_iter_state()
        return
    from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

    for module in modules:
        state = module._get_fsdp_state()
        state._training_state = TrainingState.IDLE
        state._state_ctx.iter_forward_root = None
        state._state_ctx.post_backward_final_callback_queued = False
        state._comm_ctx.post_forward_order.clear()
        state._comm_ctx.all_gather_state = state._comm_ctx.reduce_scatter_state = None
        if (group := state._fsdp_param_group) is not None:
            group._training_state = TrainingState.IDLE
            group._all_gather_result = group._post_reduce_event = None
            group._post_forward_indices.clear()
        module.reshard()


def _parameters(modules: Sequence[Any]) -> Iterator[Any]:
    """Yield FSDP2's own objects of the parameters."""
    for module in modules:
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
        for group in groups:
            yield from group.fsdp_params if group is not None else ()
