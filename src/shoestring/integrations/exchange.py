"""The exchange of gradients between the processes that a library's trainer trains in.

It replaces DistributedDataParallel, whose collectives are open during backward: a process that runs out of memory there
leaves the others waiting. Gradients are exchanged once for each update, after the last microbatch, when all processes
have agreed that they have computed theirs. The sum is the engine's, in a fixed tree.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoestring.training.engine import foreach
from shoestring.training.engine.memory import Failure
from shoestring.training.engine.parallel.buckets import Buckets
from shoestring.training.engine.parallel.buffers import ShardBuffers
from shoestring.training.engine.parallel.fully_sharded import FullySharded
from shoestring.training.engine.parallel.ranks import Ranks
from shoestring.training.engine.parallel.tree import Sums
from shoestring.training.engine.parallel.updates import complete
from shoestring.training.training_session import TrainingSession


def exchange_of(session: TrainingSession) -> GradientExchange | None:
    """Return the exchange between the processes of a session that begins; None for a single one."""
    request, state = session.request, session.state
    if request.ranks.size == 1:
        return None
    return GradientExchange(state.model, request.ranks, request.device, state.fully_sharded)


class GradientExchange:
    """Makes the gradients and buffers of a model those of all processes: the mean, as in DistributedDataParallel.

    FSDP2 takes the mean of the gradients of divided weights, in each backward.
    """

    def __init__(
        self, model: nn.Module, ranks: Ranks, device: torch.device, fully_sharded: FullySharded | None = None
    ) -> None:
        """Replace the weights, unless they are divided, and buffers by those of the first process."""
        self._ranks, self._fully_sharded = ranks, fully_sharded
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._parameters = [] if fully_sharded else trained
        self._count_of_divided = len(trained) - len(self._parameters)
        self._buffers, self._buckets = ShardBuffers(model, ranks, device), Buckets(device, ranks)
        for tensor in [*(() if fully_sharded else model.parameters()), *model.buffers()]:
            values = tensor.detach().contiguous()
            ranks.broadcast(values)
            with torch.no_grad():  # counted as a change, which an optimizer in host memory notices
                tensor.copy_(values)

    def begin_update(self) -> None:
        """Save the buffers before an update."""
        self._buffers.begin_update()
        if self._fully_sharded:
            self._fully_sharded.begin_update()

    def exchange(self) -> None:
        """Exchange the gradients of an update. Raises torch.OutOfMemoryError in all processes if one has no memory."""

        def compute() -> Sums:
            gradients = [parameter.grad for parameter in self._parameters]
            self._buckets.allocate(self._layout())
            return [*gradients, *self._buffers.end_shard(self._ranks.rank)]

        def facts(sums: Sums) -> list[float]:
            used = self._fully_sharded.used.values() if self._fully_sharded else ()
            return [*(tensor is not None for tensor in sums), *used, *self._buffers.changes]

        count = len(self._layout())
        end_of_used = count + self._count_of_divided
        computed = self._ranks.call_and_gather(compute, facts, count=end_of_used + self._buffers.count_of_others)
        sums, rows = computed
        if isinstance(sums, Failure):
            raise torch.OutOfMemoryError(sums.message)
        in_any_rank = [max(column) for column in zip(*rows, strict=True)]
        totals = complete(sums, self._layout(), in_any_rank[:count])
        present = [tensor for tensor in totals if tensor is not None]
        self._buckets.add(present)
        gradients, running = totals[: len(self._parameters)], totals[len(self._parameters) :]
        if present_gradients := [gradient for gradient in gradients if gradient is not None]:
            foreach.multiply(present_gradients, 1 / self._ranks.size)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        if self._fully_sharded:
            self._fully_sharded.end_update([bool(is_used) for is_used in in_any_rank[count:end_of_used]])
        self._buffers.end_update(running, self._ranks.size, in_any_rank[end_of_used:])

    def _layout(self) -> list[Tensor]:
        return [*self._parameters, *self._buffers.running]
