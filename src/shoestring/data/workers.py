"""Processes that fetch the batches of the next updates while this one is computed: torch's own, kept in hand.

They are torch's DataLoader's, fed with our order. What is added: they never outlive training however it dies, a signal
to stop is not theirs, and one that dies is an error that says so.
"""

import copy
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.utils.data import DataLoader

from shoestring.data import orphans
from shoestring.data.batches import Draws, fetch
from shoestring.errors import RunError

AHEAD = 2
"""Batches that each process has ready or under way."""
_PATIENCE = 5.0
"""Seconds for a process to leave by itself."""

Request = tuple[int, Sequence[int]]
"""An epoch, and samples that make up a microbatch."""
Requests = Callable[[int, int], list[Request]]
"""The microbatches of an update (its number, the microbatch's size)."""


class Workers:
    """`count` processes that fetch `requests(update, micro_batch)` of one update after the other.

    They begin where `batches` is first asked, and go on with the updates after it. Asked for anything else (an update
    that is done again in smaller microbatches) they drop what is ready and begin there.
    """

    def __init__(
        self, dataset: Any, collate: Callable[[Any], Any], requests: Requests, *, count: int, seed: int, pinned: bool
    ) -> None:
        """`pinned` batches lie in memory that a GPU copies from by itself."""
        self._ahead, self._processes = _Ahead(requests), list[BaseProcess]()
        loader: Any = DataLoader
        with _quiet():
            self._loader: Any = loader(
                _Fetched(dataset, collate, seed),
                batch_size=None,
                sampler=self._ahead,
                collate_fn=_as_it_is,
                num_workers=count,
                prefetch_factor=AHEAD,
                persistent_workers=True,
                pin_memory=pinned,
                worker_init_fn=_Init(os.getpid()),
                multiprocessing_context=_noting(self._processes),
                # Its own, so that starting does not draw from the generators of training.
                generator=torch.Generator(),
            )
        self._iterator: Any = None
        self._next: tuple[int, int] | None = None

    @property
    def pids(self) -> list[int]:
        """The processes' ids; none before the first batch."""
        return [process.pid for process in self._processes if process.pid is not None]

    def batches(self, update: int, micro_batch: int) -> Iterator[Any]:
        """The batches of `update` in their order.

        Raises RunError where a process died; what a dataset raises comes through with the traceback it had there.
        """
        if self._next != (update, micro_batch):
            self._ahead.update, self._ahead.micro_batch = update, micro_batch
            with _quiet():
                self._iterator = iter(self._loader)
        self._next = None
        for _ in self._ahead.requests(update, micro_batch):
            yield self._take()
        self._next = update + 1, micro_batch

    def close(self) -> None:
        """End the processes for good, also in the middle of a sample."""
        processes = [process for process in self._processes if process.pid is not None]
        for process in processes:
            # Theirs is to leave at once and with status 0 when it is the parent who says so.
            process.terminate()
        for process in processes:
            process.join(_PATIENCE)
        # What torch has beside them, a thread and pipes, ends with the last reference.
        self._iterator = self._loader = None
        for process in processes:
            process.kill()
            process.join()
        self._processes.clear()

    def _take(self) -> Any:
        try:
            return next(self._iterator)
        except RuntimeError as error:
            if not str(error).startswith("DataLoader worker (pid"):
                raise
            raise RunError(
                f"a process that fetches data died: {error.__cause__ or error}",
                hint="out of host memory or of /dev/shm, or a crash in the dataset's own code? workers=0 fetches in "
                "the training process and shows which",
            ) from error


class _Ahead:
    """The sampler of the DataLoader: the microbatches from `update` on, up to an update that has none."""

    def __init__(self, requests: Requests) -> None:
        self.requests = requests
        self.update, self.micro_batch = 0, 1

    def __iter__(self) -> Iterator[Request]:
        update, micro_batch = self.update, self.micro_batch
        while requests := self.requests(update, micro_batch):
            yield from requests
            update += 1


class _Fetched:
    """The dataset of the DataLoader: what lies under a request is its batch."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], seed: int) -> None:
        self._dataset, self._collate, self._seed, self._draws = dataset, collate, seed, Draws()

    def __getitem__(self, request: Request) -> Any:
        epoch, indices = request
        return fetch(self._dataset, self._collate, indices, seed=self._seed, epoch=epoch, draws=self._draws)


class _Init:
    """What a process does first."""

    def __init__(self, parent: int) -> None:
        self._parent = parent

    def __call__(self, _number: int) -> None:
        # A terminal's Ctrl-C and a signal to the whole group ask training to stop, which then ends its workers itself.
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # SIGKILL leaves training no time for that.
        orphans.end_with(self._parent)


def _noting(processes: list[BaseProcess]) -> Any:
    """Python's own way to start processes, which puts each that it starts into `processes`."""
    context: Any = copy.copy(multiprocessing.get_context(multiprocessing.get_start_method()))
    kind = context.Process

    def started(*args: Any, **kwargs: Any) -> BaseProcess:
        process: BaseProcess = kind(*args, **kwargs)
        processes.append(process)
        return process

    context.Process = started
    return context


def _as_it_is(batch: Any) -> Any:
    return batch


@contextmanager
def _quiet() -> Iterator[None]:
    """torch warns of more processes than cores, Python 3.12 of forking beside other threads: both are meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        yield
