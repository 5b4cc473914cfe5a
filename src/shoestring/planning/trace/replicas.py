"""A whole model on each GPU, as the engine trains it: logical shards, whose gradients are summed one by one.

The order of events is that of `engine/parallel`: while a shard is computed, the sums of earlier ones are pending, at
most one for each level of the tree in which they are added. When all shards are complete, large gradients are sent as
they are. For the others one flat bucket for each type is allocated, into which they are copied and back, as much as it
has room for at once.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shoestring.planning.trace.recorder import Recorder
from shoestring.planning.trace.simulated_device import DEVICE
from shoestring.planning.trace.single_device import SingleDevice
from shoestring.techniques.buckets import BUCKET, fill, split_by_size


class Replicas(SingleDevice):
    """One of `gpus` replicas, all of which make the same step."""

    def __init__(self, recorder: Recorder, model: nn.Module, gpus: int) -> None:
        super().__init__(model)
        self._recorder = recorder
        self._gpus = gpus
        self._pending: list[list[Tensor | None]] = []
        """The gradients of complete logical shards."""

    def after_shard(self) -> None:
        self._pending.append([parameter.grad for parameter in self.trained])
        for parameter in self.trained:
            parameter.grad = None

    def exchange(self) -> None:
        """Add the gradients of all shards, of this GPU and then of the others, and set the sums."""
        total = self._pending.pop()
        while self._pending:
            earlier = self._pending.pop()
            pairs = [(a, b) for a, b in zip(earlier, total, strict=True) if a is not None and b is not None]
            if pairs:
                torch._foreach_add_([a for a, _ in pairs], [b for _, b in pairs])
            total = [b if a is None else a for a, b in zip(earlier, total, strict=True)]
            del pairs, earlier
        for parameter, gradient in zip(self.trained, total, strict=True):
            parameter.grad = gradient
        if self._gpus > 1:
            self._send([gradient for gradient in total if gradient is not None])

    def _send(self, tensors: list[Tensor]) -> None:
        """Copy the small tensors into buckets and back."""
        _, small = split_by_size(tensors, "cuda")
        for dtype in dict.fromkeys(tensor.dtype for tensor in small):
            group = [tensor for tensor in small if tensor.dtype == dtype]
            size = min(sum(map(Tensor.numel, group)), BUCKET // dtype.itemsize)
            bucket = torch.empty(size, dtype=dtype, device=DEVICE)
            self._recorder.label([bucket], "gradient buckets")
            for pieces in fill(group, size):
                parts = list(bucket[: sum(map(len, pieces))].split([len(piece) for piece in pieces]))
                torch._foreach_copy_(parts, pieces)
                torch._foreach_copy_(pieces, parts)


class DividedStates(Replicas):
    """The same with divided optimizer states: each GPU updates some whole parameters and sends them to the others."""

    def divide(self, optimizer: Optimizer) -> None:
        """Leave only the parameters of the GPU with the largest share."""
        shares: list[list[list[Tensor]]] = [[] for _ in range(self._gpus)]
        sizes = [0] * self._gpus
        for group in optimizer.param_groups:
            for share in shares:
                share.append([])
            # As in torch's `zero_redundancy_optimizer.py`: the largest parameters first, each to the GPU with the
            # smallest share.
            for parameter in sorted(group["params"], key=Tensor.numel, reverse=True):
                rank = sizes.index(min(sizes))
                shares[rank][-1].append(parameter)
                sizes[rank] += parameter.numel()
        largest_share = shares[sizes.index(max(sizes))]
        for group, parameters in zip(optimizer.param_groups, largest_share, strict=True):
            group["params"] = parameters
        for parameter in set(optimizer.state) - {parameter for parameters in largest_share for parameter in parameters}:
            del optimizer.state[parameter]

    def after_update(self) -> None:
        """Send the parameters that this GPU has updated, and receive the others."""
        self._send([parameter.detach() for parameter in self.trained])
