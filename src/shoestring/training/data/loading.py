"""Loading the microbatches of each update to the device, with prefetching if that helps."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice
from types import TracebackType
from typing import Any, Self

import torch

from shoestring.base.settings import MemoryFormat
from shoestring.hardware.probe import cores
from shoestring.recipe.contract import length_of
from shoestring.recipe.microbatches import Member, flattened, longest_first, pack, split
from shoestring.recipe.parts import Parts
from shoestring.techniques import nested
from shoestring.training.data.batches import (
    CollateParts,
    SampleRandomness,
    WatchedCollate,
    collate_function,
    fetch,
    to_device,
)
from shoestring.training.data.logical_shards import LogicalShards
from shoestring.training.data.order import DataOrder
from shoestring.training.data.resident import resident
from shoestring.training.data.worker_count import WorkerCount, max_workers_in_shared_memory
from shoestring.training.data.workers import PREFETCH, Request, Workers


class Loader:
    """A recipe's training data as microbatches on the device. Usable in any loop::

        order = DataOrder(samples=len(dataset), effective_batch=64, seed=0)
        with Loader(recipe, dataset, order, seed=0, device=device) as loader:
            for update in range(start, total):
                for batch, samples in loader.microbatches(update, micro_batch=16):
                    ...

    The recipe may be any object; its `collate` and `length` are used if it has them. The content of a batch is a
    function of the seed, the update and the microbatch, and does not depend on the process that fetches it.
    """

    def __init__(
        self,
        recipe: object,
        dataset: Any,
        order: DataOrder,
        *,
        seed: int,
        device: torch.device,
        workers: int | None = None,
        shards: LogicalShards | None = None,
        packing: bool = False,
        memory_format: MemoryFormat | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`workers` is the number of processes that prefetch; None determines it by measuring, starting with none.

        Only the samples of this process's `shards` are fetched; by default the update is one shard. With `packing` a
        microbatch counts packed rows, and the recipe's `collate` gets each as a list of its samples. Images get the
        `memory_format` on the device.
        """
        on_device = resident(dataset, device)
        self._dataset = dataset if on_device is None else on_device
        self._collate, self._length = collate_function(recipe), length_of(recipe, self._dataset)
        parts = Parts.from_recipe(recipe)
        self._is_whole, self._capacity = parts.learning.whole_batch, parts.data.capacity if packing else None
        self._order, self._seed, self._device, self._clock = order, seed, device, clock
        self._memory_format = memory_format
        self._shards = shards or LogicalShards()
        self._measures_length = parts.data.packed_batch is not None and len(self._shards.by_rank) == 1
        self._randomness = SampleRandomness()
        self._fixed_workers = 0 if on_device is not None else workers
        self._worker_count, self._is_limited = WorkerCount(cores()), False
        self._processes: Workers | None = None
        self._running_workers = 0
        self._current: _UpdateTiming | None = None
        self.waiting_seconds = 0.0
        """The total time for which training waited for data."""
        self.length, self.padded_length = 0.0, 0.0
        """The total length of all samples, without and with the padding of their microbatches, if the recipe can
        pack them and one process has all of them."""

    @property
    def workers(self) -> int:
        """The number of processes that fetch data from the next update on."""
        return self._worker_count.count if self._fixed_workers is None else self._fixed_workers

    @property
    def pids(self) -> list[int]:
        """The ids of the running processes."""
        return self._processes.pids if self._processes else []

    def microbatches(self, update: int, micro_batch: int) -> Iterator[tuple[Any, int]]:
        """Yield the microbatches of `update`, pairs of (batch on the device, its samples).

        May be called again for the same update, with another microbatch and before the previous iterator is exhausted.

        Raises RunError if a worker process died, and any error of the dataset.
        """
        self._observe_last_update()
        requests = self._requests(update, micro_batch)
        source = self._source(update, micro_batch, requests)
        self._current = current = _UpdateTiming(self._clock(), len(requests))
        for _, indices in requests:
            self._measure_length(indices)
            started_at, event = self._clock(), self._record_event()
            batch = next(source)
            if not self._is_limited:
                # The first batch is the largest: if lengths differ, an update starts with its longest samples.
                self._is_limited = True
                self._worker_count.limit(max_workers_in_shared_memory(_nbytes(batch), prefetch=PREFETCH))
            if event is None or event.query():
                current.waiting_seconds += self._clock() - started_at
                self.waiting_seconds += self._clock() - started_at
            is_own = self._running_workers > 0  # a batch of a worker is this process's own copy, in pinned memory
            batch = to_device(batch, self._device, self._memory_format, asynchronous=is_own)
            yield batch, len(flattened(indices))
        # Exhaust it, so that the workers continue with the next update.
        next(source, None)

    def by_shard(self, update: int, micro_batch: int) -> Iterator[tuple[int, Iterator[tuple[Any, int]]]]:
        """Yield pairs of (logical shard, its microbatches), to be used one after the other as `microbatches`."""
        microbatches = self.microbatches(update, micro_batch)
        for shard in self._shards.own:
            yield shard, islice(microbatches, len(self._shard_requests(update, micro_batch, shard)))
        next(microbatches, None)  # exhaust it

    def missing(self, update: int, micro_batch: int) -> Iterator[tuple[Any, int]]:
        """Yield a small microbatch as often as this process has fewer microbatches in `update` than another one.

        Processes that compute each microbatch together need the same number of them.
        """
        counts = [
            sum(len(self._shard_requests(update, micro_batch, shard)) for shard in shards)
            for shards in self._shards.by_rank
        ]
        if count := max(counts) - len(self._requests(update, micro_batch)):
            indices = self._order.indices(update)[-2:]  # BatchNorm has no statistics of a single sample
            (batch,), _ = self.batches([indices], epoch=self._order.place(update)[0])
            for _ in range(count):
                yield self.to_device(batch), len(indices)

    def parts(self, update: int, micro_batch: int) -> list[Sequence[Member]]:
        """Return the members of each microbatch of `update`: samples, or packed rows of them."""
        return [indices for _, indices in self._requests(update, micro_batch)]

    def batches(self, parts: Sequence[Sequence[Member]], *, epoch: int) -> tuple[list[Any], bool]:
        """Return a batch on the host for each of the `parts`, and whether `collate` has drawn random numbers for them.

        Each sample is fetched for each part that has it.
        """
        pairs = list(self._fetched(parts, WatchedCollate(self._collate), epoch))
        return [batch for batch, _ in pairs], any(draws for _, draws in pairs)

    def same_samples(self, parts: Sequence[Sequence[Member]], *, epoch: int) -> tuple[list[Any], bool]:
        """Return what `batches` does, for parts that share samples: each sample is fetched once."""
        indices = list(dict.fromkeys(index for part in parts for index in flattened(part)))
        position = {index: number for number, index in enumerate(indices)}
        positions: list[list[Member]] = [
            [tuple(map(position.__getitem__, row)) if isinstance(row, tuple) else position[row] for row in part]
            for part in parts
        ]
        (pairs,) = self._fetched([indices], CollateParts(self._collate, positions), epoch)
        return [batch for batch, _ in pairs], any(draws for _, draws in pairs)

    def repeated(self, parts: Sequence[Sequence[Member]]) -> Generator[Any, None, None]:
        """Yield the batch of each of the `parts` in epoch 0, all of them fetched by the same process."""
        return self._fetched(parts, self._collate, 0)

    def _fetched(
        self, parts: Sequence[Sequence[Member]], collate: Callable[[Any], Any], epoch: int
    ) -> Generator[Any, None, None]:
        """Yield what `collate` returns for the samples of each of the `parts`.

        Microbatches and their workers are not affected. Data that workers fetch from the start is fetched by another
        process: workers are forked, and must not share the files that a dataset opens at its first sample.
        """
        if not self._fixed_workers:
            yield from (fetch(self._dataset, collate, part, seed=self._seed, epoch=epoch) for part in parts)
            return
        requests: list[Request] = [(epoch, part) for part in parts]
        workers = Workers(
            self._dataset,
            collate,
            lambda update, _: [] if update else requests,
            count=1,
            seed=self._seed,
            pinned=False,
        )
        try:
            yield from islice(workers.batches(0, len(parts)), len(parts))
        finally:
            workers.close()

    def to_device(self, batch: Any) -> Any:
        """Return a batch of `batches` on the device, as `microbatches` yields it."""
        return to_device(batch, self._device, self._memory_format)

    def restart(self) -> None:
        """Exclude the time since the last update, which was spent on something else, such as an evaluation."""
        self._current = None

    def close(self) -> None:
        """End the worker processes."""
        if self._processes:
            self._processes.close()
        self._processes, self._running_workers = None, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _requests(self, update: int, micro_batch: int) -> list[Request]:
        return [request for shard in self._shards.own for request in self._shard_requests(update, micro_batch, shard)]

    def _shard_requests(self, update: int, micro_batch: int, shard: int) -> list[Request]:
        epoch, _ = self._order.place(update)
        indices = self._order.indices(update)
        if self._length is not None:
            indices = longest_first(indices, self._length)
        dealt = self._shards.deal(indices, shard)
        if self._capacity is not None and self._length is not None:
            return [(epoch, part) for part in split(pack(dealt, self._length, self._capacity), micro_batch)]
        # A single remaining sample joins the epoch's last full update, which then exceeds the microbatch.
        size = len(indices) if self._is_whole else micro_batch
        return [(epoch, part) for part in self._shards.split(dealt, size)]

    def _measure_length(self, members: Sequence[Member]) -> None:
        if self._length is None or not self._measures_length:
            return
        lengths = [sum(map(self._length, flattened([member]))) for member in members]
        self.length += sum(lengths)
        self.padded_length += len(lengths) * max(lengths)

    def _source(self, update: int, micro_batch: int, requests: list[Request]) -> Iterator[Any]:
        if self.workers != self._running_workers:
            self.close()
            self._running_workers = self.workers
        if not self._running_workers:
            return (
                fetch(self._dataset, self._collate, indices, seed=self._seed, epoch=epoch, randomness=self._randomness)
                for epoch, indices in requests
            )
        if not self._processes:
            self._processes = Workers(
                self._dataset,
                self._collate,
                self._requests,
                count=self._running_workers,
                seed=self._seed,
                pinned=self._device.type == "cuda",
            )
        return self._processes.batches(update, micro_batch)

    def _observe_last_update(self) -> None:
        """Report the timing of the last update, from its first batch to the first one of the next update."""
        last, self._current = self._current, None
        if last and self._fixed_workers is None:
            self._worker_count.observe(
                waiting_seconds=last.waiting_seconds,
                seconds=self._clock() - last.started_at,
                microbatches=last.microbatches,
            )

    def _record_event(self) -> Any:
        """Record a CUDA event after the work submitted so far: until it completes, the GPU is not waiting for data.

        Returns None without a GPU.
        """
        if self._device.type != "cuda":
            return None
        event: Any = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event


def _nbytes(batch: Any) -> int:
    """Return the bytes of the batch's tensors."""
    return sum(tensor.nbytes for tensor in nested.tensors(batch))


class _UpdateTiming:
    """The timing of the current update."""

    def __init__(self, started_at: float, microbatches: int) -> None:
        self.started_at, self.microbatches, self.waiting_seconds = started_at, microbatches, 0.0
