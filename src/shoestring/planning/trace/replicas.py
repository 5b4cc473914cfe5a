"""A model on several GPUs, as the engine trains it: one of them makes the engine's update of its logical shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shoestring.planning.trace.microbatches import Microbatches
from shoestring.planning.trace.recorder import Recorder
from shoestring.planning.trace.simulated_device import DEVICE
from shoestring.planning.trace.single_device import SingleDevice
from shoestring.planning.trace.traced_ranks import TracedRanks
from shoestring.training.data.logical_shards import LogicalShards
from shoestring.training.engine.parallel.divided_optimizer import DividedOptimizer, divide, require_divisible
from shoestring.training.engine.parallel.updates import ShardedUpdates
from shoestring.training.engine.precision import MixedPrecision
from shoestring.training.engine.update import LossFunction


class Replicas(SingleDevice):
    """One of `gpus` replicas, which has `own_shards` of the logical shards."""

    fully_sharded: Any = None

    def __init__(self, recorder: Recorder, model: nn.Module, gpus: int, own_shards: int) -> None:
        super().__init__(model)
        self._recorder, self._gpus, self._own_shards = recorder, gpus, own_shards
        self._microbatches: Any = None

    def set_optimizer(self, optimizer: Optimizer) -> None:
        self._make_updates(optimizer, self._ranks())

    def update(
        self,
        loss: LossFunction,
        number: int,
        microbatches: Microbatches,
        *,
        mixed_precision: MixedPrecision,
        clip_norm: float | None,
    ) -> None:
        self._microbatches = microbatches
        microbatches.begin_update(number)

        def by_shard() -> Iterator[tuple[int, Iterable[tuple[Any, int]]]]:
            for shard in self._shards.own:
                yield shard, microbatches
            microbatches.mark("exchange")

        self._updates.update(
            loss,
            number,
            by_shard(),
            samples=microbatches.size * microbatches.count * self._shards.count,
            mixed_precision=mixed_precision,
            clip_norm=clip_norm,
            run=microbatches.run,
        )

    def _ranks(self, rank: int = 0) -> TracedRanks:
        return TracedRanks(rank, self._gpus, on_exchange=self._label_buckets, on_step=self._mark_step)

    def _make_updates(self, optimizer: Any, ranks: TracedRanks) -> None:
        self._shards = LogicalShards.of_rank(self._own_shards * self._gpus, ranks.rank, self._gpus)
        device = torch.device(DEVICE)
        self._updates = ShardedUpdates(
            self.model, optimizer, self._shards, ranks, device, seed=0, fully_sharded=self.fully_sharded
        )

    def _label_buckets(self, tensors: Sequence[Tensor]) -> None:
        self._recorder.label(tensors, "gradient buckets")  # those that are no gradients or weights

    def _mark_step(self) -> None:
        self._microbatches.mark("optimizer")


class DividedStates(Replicas):
    """The same with divided optimizer states: each GPU updates some whole parameters and sends them to the others."""

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Trace the GPU with the largest share of the states."""
        require_divisible(optimizer)
        sizes = [0] * self._gpus
        for parameter, rank in divide([group["params"] for group in optimizer.param_groups], self._gpus).items():
            sizes[rank] += parameter.numel()
        ranks = self._ranks(sizes.index(max(sizes)))
        self._make_updates(DividedOptimizer(optimizer, ranks, torch.device(DEVICE)), ranks)
