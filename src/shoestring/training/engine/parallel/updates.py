"""One update in logical shards, on one or several processes, with the same bits for every number of them.

Each shard's gradient is summed by itself, from random numbers and buffers that do not depend on other shards. Shards
are added in a fixed binary tree, ((0 + 1) + (2 + 3)): first those of a process, then those of two processes at each
level. An all-reduce of two is one addition, which has the same bits on every backend; a backend adds more than two in
an order of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.base.errors import UsageError
from shoestring.training.data.logical_shards import LogicalShards
from shoestring.training.data.own_generators import LazyGenerators
from shoestring.training.data.seeding import seed_all
from shoestring.training.engine import foreach
from shoestring.training.engine.cuda_graphs import CudaGraphs
from shoestring.training.engine.memory import Failure, HalfDoneError
from shoestring.training.engine.parallel.buckets import Buckets
from shoestring.training.engine.parallel.buffers import ShardBuffers
from shoestring.training.engine.parallel.divided_optimizer import DividedOptimizer
from shoestring.training.engine.parallel.fully_sharded import FullySharded
from shoestring.training.engine.parallel.overlap import Overlap
from shoestring.training.engine.parallel.ranks import Ranks, ending_ranks_apart
from shoestring.training.engine.parallel.timing import RankTimes
from shoestring.training.engine.parallel.tree import Sums, Tree, add_tensors, tree_sum
from shoestring.training.engine.precision import MixedPrecision
from shoestring.training.engine.update import (
    LossFunction,
    Microbatch,
    RepeatedUpdate,
    Runner,
    UpdateResult,
    Weight,
    add_gradients,
    add_zero_gradients,
    step,
)
from shoestring.training.session.stop import SessionOver


class ShardedUpdates:
    """Makes the updates of a model that is the same on all ranks, or divided among them.

    FSDP2 adds the gradients of a divided model in each backward. Then the shards are not summed one by one, and all
    ranks make the same number of microbatches: missing ones have the weight zero.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        shards: LogicalShards,
        ranks: Ranks,
        device: torch.device,
        *,
        seed: int,
        fully_sharded: FullySharded | None = None,
    ) -> None:
        self._model, self._optimizer, self._shards, self._ranks = model, optimizer, shards, ranks
        self._seed, self._fully_sharded = seed, fully_sharded
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if fully_sharded:
            self._parameters = []  # whose gradients are added here
        self._buffers, self._buckets = ShardBuffers(model, ranks, device), Buckets(device, ranks)
        _require_separate(model, ranks)
        self._overlap = Overlap(self._parameters, self._buckets, ranks, device)
        self._loss_sum = torch.zeros((), device=device)
        self._sums_count = len(self._layout())
        self.generators = LazyGenerators()
        """Those that the loss and the model hold."""
        self.times = RankTimes(device)

    def update(
        self,
        loss: LossFunction,
        number: int,
        microbatches: Iterable[tuple[int, Iterable[tuple[Any, int]]]],
        *,
        samples: int,
        mixed_precision: MixedPrecision,
        clip_norm: float | None = None,
        run: Runner | None = None,
        on_gradients: Callable[[], None] | None = None,
        missing: Iterable[tuple[Any, int]] = (),
    ) -> UpdateResult | Failure | RepeatedUpdate:
        """Make update number `number` over `microbatches`, pairs of (logical shard, its microbatches).

        A model that is divided among the ranks also needs the `missing` microbatches.

        The other arguments are those of `engine.update.update`, and so are the errors. Returns a Failure on all ranks
        if one of them has run out of memory, and a RepeatedUpdate if gradients were exchanged too early or the losses
        have created generators, which were not seeded; only gradients and buffers have changed then. Raises
        RanksApartError if this rank has run out of memory in the exchange.
        """
        weights: list[float] = []
        divided, users = self._fully_sharded, {"loss": loss, "model": self._model}
        own_generators = self.generators.search(**users)
        if divided:
            loss = divided.gathering(loss)

        overlap, own = self._overlap, self._shards.own
        overlap.begin_update(_stage(loss), is_eager=not isinstance(run, CudaGraphs))
        expected = 0.0  # the weight by which the losses of the current shard are divided

        def expect(weight: Weight, size: int, samples: int) -> float:
            nonlocal expected
            expected = _expect_power_of_two(weight, size, samples)
            return expected

        def compute() -> Sums:
            with ending_ranks_apart(self._ranks) if overlap.is_active else nullcontext():
                self._buckets.allocate(self._layout(), for_any_values=bool(self._parameters))
            try:
                sums = add_shards()
            except (Exception, SessionOver):
                with ending_ranks_apart(self._ranks):
                    overlap.abandon()
                raise
            self.times.clock.start()
            overlap.wait()
            return overlap.merged(sums)

        def add_shards() -> Sums:
            tree = Tree(add_tensors)
            self._buffers.begin_update()
            if mixed_precision.scaler:  # creates its scale in the first call, and this rank may have no samples
                mixed_precision.scaler.scale(self._loss_sum)
            if divided:
                divided.begin_update()
            for shard, batches in microbatches:
                own_generators.seed_all(self._shards.seed(self._seed, number, shard))
                self._buffers.begin_shard()
                total = add_gradients(
                    self._model,
                    loss,
                    watching_last(shard, batches, tree),
                    samples=samples,
                    mixed_precision=mixed_precision,
                    run=run,
                    expect=self._expect_samples if divided else expect,
                )
                if shard == own[-1]:
                    overlap.complete(tree, lambda: expected / samples)
                weights.append(0.0 if total is None else float(total.weight))
                tree.append(self._take_sums(total, shard, samples))
            if divided:
                add_zero_gradients(self._model, loss, missing, mixed_precision=mixed_precision)
            return tree.sum()

        def watching_last(
            shard: int, batches: Iterable[tuple[Any, int]], tree: Tree[Sums]
        ) -> Iterator[tuple[Any, int]]:
            nonlocal expected
            expected = 0.0  # until the loss of the shard's first microbatch is computed
            remaining = len(self._shards.deal(range(samples), shard))
            for batch in batches:
                remaining -= batch[1]
                if shard == own[-1] and not remaining:
                    overlap.watch(tree, lambda: expected / samples)
                yield batch

        def facts(sums: Sums) -> list[float]:
            used = divided.used.values() if divided else ()
            present = (tensor is not None for tensor in sums[len(self._parameters) :])
            has_new = any(weights) and self.generators.has_new(**users)
            return [*self.times.own(), *weights, *overlap.reports, *present, *self._buffers.changes, *used, has_new]

        parameters = self._count_of_gradients()
        count = RankTimes.count + len(own) + self._sums_count + self._buffers.count_of_others + parameters + 1
        position = divided.position if divided else None
        try:
            computed = self._ranks.call_and_gather(compute, facts, count=count, position=position)
        except BaseException:
            self._drop_gradients()
            raise
        sums, facts_by_rank = computed
        if isinstance(sums, Failure):
            if divided:
                divided.reset(sums)
            self._drop_gradients()
            return sums
        self.times.add([row[: RankTimes.count] for row in facts_by_rank])
        first = RankTimes.count + len(own)
        is_exchanged = overlap.end_update([row[first : first + len(self._parameters)] for row in facts_by_rank])
        if not is_exchanged or any(row[-1] for row in facts_by_rank):
            self._drop_gradients()
            return RepeatedUpdate()
        with ending_ranks_apart(self._ranks):
            total = self._exchange(sums, [row[RankTimes.count : -1] for row in facts_by_rank], samples)
        self.times.clock.stop()
        if self._shards.count > 1:  # the optimizer's random numbers depend on no shard
            seed_all(self._shards.seed(self._seed, number, self._shards.count))
        result = self._ranks.call(
            lambda: step(
                self._optimizer, total, mixed_precision=mixed_precision, clip_norm=clip_norm, on_gradients=on_gradients
            ),
            position,
        )
        if isinstance(result, Failure):
            # Other ranks have made their step, which a repetition of the update would make again.
            raise HalfDoneError(result.message, hint="weights may be partly updated: resume from the last checkpoint")
        if isinstance(self._optimizer, DividedOptimizer) and result.stepped:
            with ending_ranks_apart(self._ranks):
                self._optimizer.publish()
        return result

    def _take_sums(self, total: Microbatch | None, shard: int, samples: int) -> Sums:
        """Return the gradient of a shard, its loss and its running statistics, and clear the gradient.

        The gradient is that of the sum of losses divided by `samples`, in every shard.
        """
        if total is None:
            return [None] * self._sums_count
        gradients = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        factor = float(total.expected) / samples
        present = [gradient for gradient in gradients if gradient is not None]
        if factor != 1 and present:
            foreach.multiply(present, factor)
        return [*gradients, total.loss_sum, *self._buffers.end_shard(shard)]

    def _exchange(self, sums: Sums, facts: Sequence[Sequence[float]], samples: int) -> Microbatch:
        """Add the sums of all ranks, set gradients and buffers, and return the loss and weight of the update."""
        own_shards = len(self._shards.own)
        weights = [weight for row in facts for weight in row[:own_shards]]
        in_any_rank = [max(column) for column in zip(*(row[own_shards:] for row in facts), strict=True)]
        is_present, remaining = in_any_rank[: self._sums_count], in_any_rank[self._sums_count :]
        changes, used = remaining[: self._buffers.count_of_others], remaining[self._buffers.count_of_others :]
        if self._fully_sharded:
            self._fully_sharded.end_update(used)
        totals = complete(sums, self._layout(), is_present)
        self._buckets.add(
            [
                tensor
                for index, tensor in enumerate(totals)
                if tensor is not None and not self._overlap.is_exchanged(index)
            ]
        )
        self._overlap.drop()
        count = len(self._parameters)
        for parameter, gradient in zip(self._parameters, totals[:count], strict=True):
            parameter.grad = gradient
        self._buffers.end_update(totals[count + 1 :], self._shards.occupied(samples), changes)
        loss_sum = totals[count]
        assert loss_sum is not None
        return Microbatch(loss_sum, tree_sum(weights), float(samples))

    def _drop_gradients(self) -> None:
        """Free the memory of an update that has failed."""
        self._overlap.drop()
        self._buckets.free()

    def _count_of_gradients(self) -> int:
        """Return the number of parameters whose use all ranks have to know."""
        if not self._fully_sharded:
            return 0
        return sum(parameter.requires_grad for parameter in self._model.parameters())

    def _expect_samples(self, _: Weight, __: int, samples: int) -> Weight:
        """Divide losses by `samples`, which needs no agreement. FSDP2 takes the mean of the ranks: divide by less."""
        return samples / self._ranks.size

    def _layout(self) -> list[Tensor]:
        """Return tensors like those of `Sums`."""
        return [*self._parameters, self._loss_sum, *self._buffers.running]


def _stage(loss: LossFunction) -> Hashable:
    """Return the stage of the run, which a loss of `losses.loss_at` has among its keywords."""
    return repr(getattr(loss, "keywords", {}).get("stage"))


def _require_separate(model: nn.Module, ranks: Ranks) -> None:
    """Raise UsageError for a model whose ranks cannot compute separately, and then add their gradients."""
    problems = [
        f"{name}: SyncBatchNorm communicates in forward; the running statistics of BatchNorm are averaged after it"
        for name, module in model.named_modules()
        if isinstance(module, nn.SyncBatchNorm)
    ]
    problems += [
        f"{name}: its elements are not next to each other in memory"
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and not _is_dense(parameter)
    ]
    if problems and ranks.size > 1:
        raise UsageError(
            "the model cannot be trained by several processes",
            problems=problems,
            hint="use BatchNorm, and parameters made by .contiguous() or .clone(); or train with gpus=1",
        )


def _is_dense(tensor: Tensor) -> bool:
    """Return whether the elements fill their memory without gaps, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != expected:
            return tensor.numel() == 0
        expected *= size
    return True


def complete(sums: Sums, templates: Sequence[Tensor], is_present: Sequence[float]) -> Sums:
    """Return the sums with a tensor, like its template, in place of each that only other ranks have, and without those
    that no rank has.
    """
    # -0 is the number that changes no other one by addition: 0 would change -0.
    return [
        (torch.full_like(template, -0.0) if tensor is None else tensor) if has_term else None
        for tensor, template, has_term in zip(sums, templates, is_present, strict=True)
    ]


def _expect_power_of_two(weight: Weight, size: int, samples: int) -> float:
    """Extrapolate the total weight of `samples` to `samples` times a power of two.

    So the gradients of all shards can be brought to the same scale without rounding.
    """
    mean = float(weight) / size
    return samples * 2.0 ** round(math.log2(mean)) if 0 < mean < math.inf else float(samples)
