"""The batches of each update: fetched ahead where that helps, on the device, and how long training waited for them."""

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import torch

from shoestring.data.batches import Draws, collate_of, fetch, to_device
from shoestring.data.order import DataOrder, longest_first, split
from shoestring.data.resident import resident
from shoestring.data.worker_count import WorkerCount, room
from shoestring.data.workers import AHEAD, Request, Workers
from shoestring.hardware.probe import cores
from shoestring.recipe.contract import length_of
from shoestring.techniques import trees


class Loader:
    """A recipe's training data as microbatches on the device. Usable in any loop::

        order = DataOrder(samples=len(dataset), effective_batch=64, seed=0)
        with Loader(recipe, dataset, order, seed=0, device=device) as loader:
            for update in range(start, total):
                for batch, samples in loader.microbatches(update, micro_batch=16):
                    ...

    The recipe may be any object; of it are used, where they are there, `collate` and `length`. What a batch holds is a
    function of the seed, the update and the microbatch, whoever fetches it.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`workers` processes fetch ahead; None: as many as measuring says, none at first."""
        on_device = resident(dataset, device)
        self._dataset = dataset if on_device is None else on_device
        self._collate, self._length = collate_of(recipe), length_of(recipe, self._dataset)
        self._order, self._seed, self._device, self._clock = order, seed, device, clock
        self._draws = Draws()
        self._fixed = 0 if on_device is not None else workers
        self._measured, self._bounded = WorkerCount(cores()), False
        self._processes: Workers | None = None
        self._running = 0
        self._last: _Last | None = None
        self.waiting_seconds = 0.0
        """Training stood still for data, in all so far."""

    @property
    def workers(self) -> int:
        """How many processes fetch data from the next update on."""
        return self._measured.count if self._fixed is None else self._fixed

    @property
    def pids(self) -> list[int]:
        """The processes that run now."""
        return self._processes.pids if self._processes else []

    def microbatches(self, update: int, micro_batch: int) -> Iterator[tuple[Any, int]]:
        """The microbatches of `update`, pairs of (batch on the device, its samples).

        May be asked again for the same update, also before the last answer was used up and with another microbatch.

        Raises RunError where a process that fetches died, and what the dataset raises.
        """
        self._tell()
        requests = self._requests(update, micro_batch)
        source = self._source(update, micro_batch, requests)
        self._last = last = _Last(self._clock(), len(requests))
        for _, indices in requests:
            began, mark = self._clock(), self._mark()
            batch = next(source)
            if not self._bounded:
                # The first is as large as they come: where lengths differ, an update begins with its longest.
                self._bounded = True
                self._measured.limit(room(_nbytes(batch), ahead=AHEAD))
            if mark is None or mark.query():
                last.waited += self._clock() - began
                self.waiting_seconds += self._clock() - began
            yield to_device(batch, self._device), len(indices)
        # Run it to its end: the workers' next update follows on this one.
        next(source, None)

    def restart(self) -> None:
        """Leave out the time since the last update: it went into something else, such as an evaluation."""
        self._last = None

    def close(self) -> None:
        """End the processes."""
        if self._processes:
            self._processes.close()
        self._processes, self._running = None, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _requests(self, update: int, micro_batch: int) -> list[Request]:
        epoch, _ = self._order.place(update)
        indices = self._order.indices(update)
        if self._length is not None:
            indices = longest_first(indices, self._length)
        return [(epoch, some) for some in split(indices, micro_batch)]

    def _source(self, update: int, micro_batch: int, requests: list[Request]) -> Iterator[Any]:
        if self.workers != self._running:
            self.close()
            self._running = self.workers
        if not self._running:
            return (
                fetch(self._dataset, self._collate, indices, seed=self._seed, epoch=epoch, draws=self._draws)
                for epoch, indices in requests
            )
        if not self._processes:
            self._processes = Workers(
                self._dataset,
                self._collate,
                self._requests,
                count=self._running,
                seed=self._seed,
                pinned=self._device.type == "cuda",
            )
        return self._processes.batches(update, micro_batch)

    def _tell(self) -> None:
        """Have the last update measured: from its first batch to this one's."""
        last, self._last = self._last, None
        if last and self._fixed is None:
            self._measured.observe(
                waited=last.waited, seconds=self._clock() - last.began, microbatches=last.microbatches
            )

    def _mark(self) -> Any:
        """What the GPU has to do now; as long as it is not done, nobody waits for the data. None without a GPU."""
        if self._device.type != "cuda":
            return None
        mark: Any = torch.cuda.Event()
        mark.record(torch.cuda.current_stream(self._device))
        return mark


def _nbytes(batch: Any) -> int:
    """Of its tensors."""
    return sum(leaf.nbytes for leaf in trees.leaves(batch) if isinstance(leaf, torch.Tensor))


class _Last:
    """The update under way."""

    def __init__(self, began: float, microbatches: int) -> None:
        self.began, self.microbatches, self.waited = began, microbatches, 0.0
