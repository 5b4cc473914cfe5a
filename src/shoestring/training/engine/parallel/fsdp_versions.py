"""What FSDP2 does differently from version to version of torch.

Resetting it: an exception within forward or backward leaves each module in the state of the interrupted pass. Hooks of
the next pass then skip collectives, and gradients are added to those of the interrupted one: it trains other weights,
without an error. torch has a public function for it from 2.13 on. For earlier versions this module sets the private
state; it names those with which it was tried, and with any other one the run returns to its last checkpoint instead.

Parameters that a microbatch does not use: they have no gradient, so ranks that use different ones would exchange
tensors of different sizes, which ends in an abort or in other weights. From 2.13 on torch exchanges zeros on request.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

VERSIONS = ("2.10", "2.11")
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


def exchange_unused(modules: Sequence[Any]) -> None:
    """Let all ranks exchange gradients of all trainable parameters, zeros for those that a microbatch does not use.

    The `modules` are those of a model that are fully sharded, the root at the end.
    """
    root = modules[-1]
    if hasattr(root, "set_reduce_scatter_unused_params"):
        root.set_reduce_scatter_unused_params(True)
        return
    for group in _groups(modules):
        group.post_backward = partial(_end_backward, group, group.post_backward)


def _end_backward(group: Any, post_backward: Callable[..., None], *unused: Any) -> None:
    for parameter in group.fsdp_params:
        whole = getattr(parameter, "_unsharded_param", None)
        if whole is None or not whole.requires_grad:
            continue
        if whole.grad is None and parameter.unsharded_accumulated_grad is None:
            whole.grad = torch.zeros_like(whole)
    post_backward(*unused)


def _parameters(modules: Sequence[Any]) -> Iterator[Any]:
    """Yield FSDP2's own objects of the parameters."""
    for group in _groups(modules):
        yield from group.fsdp_params


def _groups(modules: Sequence[Any]) -> Iterator[Any]:
    """Yield FSDP2's own objects of the parameters that are gathered together."""
    for module in modules:
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
        yield from (group for group in groups if group is not None)
