"""A whole model on each GPU in DistributedDataParallel, as in loops of one's own.

Neither the engine nor a library's trainer that it survives uses it: estimates are compared with measurements of it.

The order of events is that of `torch/nn/parallel/distributed.py` (2.13) and of its Reducer
(`torch/csrc/distributed/c10d/reducer.cpp`): buckets for all gradients are created with the model, first one for each
type. Once the order is known in which gradients become ready, they are freed and replaced by buckets of 1 MiB and then
of 25 MiB. Gradients are copied into the buckets and back (`gradient_as_bucket_view=False`).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from shoestring.base.units import MIB
from shoestring.planning.trace.event_log import EventLog
from shoestring.planning.trace.microbatches import Hooks
from shoestring.planning.trace.simulated_device import DEVICE

FIRST_BUCKET = MIB
BUCKET = 25 * MIB
"""`kDefaultFirstBucketBytes` and `kDefaultBucketBytesCap` in torch's `reducer.hpp`."""

BROADCAST = 250 * MIB
"""`broadcast_bucket_size` in `distributed.py`."""
BROADCASTS_AT_ONCE = 2
"""`max_in_flight` of `broadcast_coalesced` in torch's `csrc/distributed/c10d/comm.cpp`."""


class DistributedReplicas(Hooks):
    """`DistributedDataParallel(model)` with its defaults."""

    def __init__(self, log: EventLog, model: nn.Module) -> None:
        self._log = log
        self._buffers = list(model.buffers())
        self._ready: dict[nn.Parameter, None] = {}
        """Parameters in the order in which their gradients became ready."""
        self._buckets: list[Tensor] = []
        self._rebuilt = False
        _broadcast([*model.parameters(), *self._buffers])
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._make_buckets(trained, [sys.maxsize])
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(self._remember)

    def before_forward(self) -> None:
        """Broadcast the first GPU's buffers."""
        _broadcast(self._buffers)

    def after_update(self) -> None:
        """Rebuild the buckets after the first backward, which sets the order; torch waits for the next forward."""
        if not self._rebuilt:
            self._rebuilt = True
            self._make_buckets(list(self._ready), [FIRST_BUCKET, BUCKET])

    def _remember(self, parameter: Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        self._ready.setdefault(parameter)

    def _make_buckets(self, parameters: Sequence[nn.Parameter], limits: Sequence[int]) -> None:
        self._buckets.clear()
        for group in buckets(parameters, limits):
            self._buckets.append(_flat(group))
            self._log.label(self._buckets[-1:], "gradient buckets")


def buckets(tensors: Iterable[Tensor], limits: Sequence[int]) -> list[list[Tensor]]:
    """Group consecutive tensors of one type; a bucket is full once it reaches its limit in bytes.

    The limits apply to a type's buckets in order, the last limit to all further ones, as in
    `compute_bucket_assignment_by_size` in `reducer.cpp`.
    """
    full_buckets: list[list[Tensor]] = []
    open_buckets: dict[torch.dtype, list[Tensor]] = {}
    full_count: dict[torch.dtype, int] = {}
    for tensor in tensors:
        bucket = open_buckets.setdefault(tensor.dtype, [])
        bucket.append(tensor)
        limit = limits[min(full_count.get(tensor.dtype, 0), len(limits) - 1)]
        if sum(member.numel() * member.element_size() for member in bucket) >= limit:
            full_buckets.append(open_buckets.pop(tensor.dtype))
            full_count[tensor.dtype] = full_count.get(tensor.dtype, 0) + 1
    return full_buckets + list(open_buckets.values())


def _broadcast(tensors: Iterable[Tensor]) -> None:
    """Allocate and free flat copies of the tensors, two at a time."""
    in_flight: deque[Tensor] = deque()
    for group in buckets(tensors, [BROADCAST]):
        if len(in_flight) == BROADCASTS_AT_ONCE:
            in_flight.popleft()
        in_flight.append(_flat(group))


def _flat(group: Sequence[Tensor]) -> Tensor:
    return torch.empty(sum(tensor.numel() for tensor in group), dtype=group[0].dtype, device=DEVICE)
