"""Worker processes that prefetch the batches of the next updates while the current one is computed.

They are those of torch's DataLoader, with our order. In addition they never outlive training, however it ends, they do
not receive the signals that stop training, and the death of one raises an error with its cause.
"""

import copy
import multiprocessing
import multiprocessing.queues
import multiprocessing.util
import os
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.utils.data import DataLoader

from shoestring.base import processes
from shoestring.base.errors import RunError
from shoestring.recipe.microbatches import Member
from shoestring.recipe.source import RecipeModules
from shoestring.training.data.batches import SampleRandomness, fetch, pinned
from shoestring.training.monitor.host_memory import describe_memory

PREFETCH = 2
"""Batches that each process prefetches."""
_EXIT_SECONDS = 5.0
"""For a process to exit by itself."""
_LONGEST_FOLDER = 107 - len("/pymp-12345678/listener-12345678")
"""The length of a path in which a socket of multiprocessing can be bound: Linux allows 107 bytes for its own."""

Request = tuple[int, Sequence[Member]]
"""An epoch, and the samples or packed rows of a microbatch."""
Requests = Callable[[int, int], list[Request]]
"""(number of the update, size of the microbatch) -> the microbatches of the update."""


class Workers:
    """`count` processes that fetch `requests(update, micro_batch)` for one update after the other.

    They start with the update of the first call of `batches` and continue with the following updates. When `batches` is
    called for another one (such as an update that is repeated with smaller microbatches), they discard the prefetched
    batches and continue from there.
    """

    def __init__(
        self, dataset: Any, collate: Callable[[Any], Any], requests: Requests, *, count: int, seed: int, pinned: bool
    ) -> None:
        """`pinned` places batches in pinned memory, from which copies to a GPU are asynchronous."""
        self._sampler, self._processes = _RequestSampler(requests), list[BaseProcess]()
        loader: Any = DataLoader
        with _ignored_warnings():
            self._loader: Any = loader(
                _RequestDataset(dataset, collate, seed),
                batch_size=None,
                sampler=self._sampler,
                collate_fn=_identity,
                num_workers=count,
                prefetch_factor=PREFETCH,
                persistent_workers=True,
                pin_memory=pinned,
                worker_init_fn=_InitWorker(os.getpid()),
                multiprocessing_context=_tracking_context(self._processes),
                # A separate generator, so that starting does not draw from those of training.
                generator=torch.Generator(),
            )
        self._iterator: Any = None
        self._next_request: tuple[int, int] | None = None

    @property
    def pids(self) -> list[int]:
        """The ids of the processes; empty before the first batch."""
        return [process.pid for process in self._processes if process.pid is not None]

    def batches(self, update: int, micro_batch: int) -> Iterator[Any]:
        """Yield the batches of `update` in their order.

        Raises RunError if a process died. Errors of the dataset are raised with the traceback of the worker process.
        """
        is_continued = self._next_request == (update, micro_batch)
        self._next_request = None
        requests = self._sampler.requests(update, micro_batch)
        if not requests:
            return  # this process has no samples in the update: the sampler has ended here and begins again after it
        if not is_continued:
            self._sampler.update, self._sampler.micro_batch = update, micro_batch
            with _ignored_warnings():
                self._iterator = iter(self._loader)
        for _ in requests:
            yield self._next_batch()
        self._next_request = update + 1, micro_batch

    def close(self) -> None:
        """End the processes, even while they fetch a sample."""
        _end_pinning(self._iterator)
        processes = [process for process in self._processes if process.pid is not None]
        for process in processes:
            # On SIGTERM from its parent, torch's worker exits immediately with status 0.
            process.terminate()
        for process in processes:
            process.join(_EXIT_SECONDS)
        # torch's thread and pipes for the processes end with the last reference.
        self._iterator = self._loader = None
        for process in processes:
            process.kill()
            process.join()
        self._processes.clear()

    def _next_batch(self) -> Any:
        try:
            batch: _FetchedBatch = next(self._iterator)
            return batch.content
        except RuntimeError as error:
            if not str(error).startswith("DataLoader worker (pid"):
                raise
            raise RunError(
                f"a data worker process died: {error.__cause__ or error}",
                problems=describe_memory(),
                hint="check for out of memory on the host or in /dev/shm, and for a crash in the dataset's code; "
                "workers=0 fetches in the training process and shows the cause",
            ) from error


def _end_pinning(iterator: Any) -> None:
    """End the DataLoader's thread that puts batches into pinned memory, as torch does before it ends the processes: the
    thread receives tensors from them, and would print an error if they ended meanwhile.

    The names are private (`torch/utils/data/dataloader.py: _shutdown_workers`, unchanged from torch 2.10 to 2.13).
    """
    names = ("_pin_memory_thread", "_pin_memory_thread_done_event", "_worker_result_queue")
    thread, is_over, queue = (getattr(iterator, name, None) for name in names)
    if thread is not None and is_over is not None and queue is not None:
        is_over.set()
        queue.put((None, None))  # wakes the thread
        thread.join(_EXIT_SECONDS)


class _RequestSampler:
    """The sampler of the DataLoader: the microbatches from `update` on, up to an update without any."""

    def __init__(self, requests: Requests) -> None:
        self.requests = requests
        self.update, self.micro_batch = 0, 1

    def __iter__(self) -> Iterator[Request]:
        update, micro_batch = self.update, self.micro_batch
        while requests := self.requests(update, micro_batch):
            yield from requests
            update += 1


class _RequestDataset:
    """The dataset of the DataLoader: its item for a request is the batch."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], seed: int) -> None:
        self._dataset, self._collate, self._seed = dataset, collate, seed
        self._randomness = SampleRandomness()

    def __reduce__(self) -> tuple[Any, ...]:
        # For a worker that is spawned: the dataset may be of a class in the recipe's file.
        return _make_request_dataset, (RecipeModules(), self._dataset, self._collate, self._seed)

    def __getitem__(self, request: Request) -> Any:
        epoch, indices = request
        return _FetchedBatch(
            fetch(self._dataset, self._collate, indices, seed=self._seed, epoch=epoch, randomness=self._randomness)
        )


def _make_request_dataset(
    _modules: RecipeModules, dataset: Any, collate: Callable[[Any], Any], seed: int
) -> _RequestDataset:
    return _RequestDataset(dataset, collate, seed)


class _FetchedBatch:
    """A batch on its way from a worker. The DataLoader, which does not know all containers, calls its `pin_memory`."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def pin_memory(self) -> "_FetchedBatch":
        return _FetchedBatch(pinned(self.content))


class _InitWorker:
    """Initializes a worker process."""

    def __init__(self, parent: int) -> None:
        self._parent = parent

    def __call__(self, _number: int) -> None:
        # Ctrl-C in a terminal and signals to the process group are for training, which then ends its workers itself.
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # After a SIGKILL training cannot end them.
        processes.exit_with_parent(self._parent)
        _shorten_socket_paths()
        # The thread that sends batches would print an error and go on; training would wait for the batch without end.
        multiprocessing.queues.Queue._on_queue_feeder_error = staticmethod(_exit_after_error)  # type: ignore[attr-defined]


def _shorten_socket_paths() -> None:
    """Let multiprocessing put its sockets, over which tensors are sent, into /tmp if the temporary folder has a longer
    path than a socket may have, as Python does since 3.14.
    """
    if len(os.fsencode(tempfile.gettempdir())) > _LONGEST_FOLDER:
        folder, tempfile.tempdir = tempfile.tempdir, "/tmp"
        try:
            multiprocessing.util.get_temp_dir()
        finally:
            tempfile.tempdir = folder


def _exit_after_error(error: Exception, _batch: Any) -> None:
    """Print an error in sending a batch, and end this process, which raises an error in training."""
    traceback.print_exception(error)
    os._exit(1)


def _tracking_context(processes: list[BaseProcess]) -> Any:
    """Return Python's default multiprocessing context, which also appends each process it starts to `processes`."""
    context: Any = copy.copy(multiprocessing.get_context(multiprocessing.get_start_method()))
    process_class = context.Process

    def start_tracked(*args: Any, **kwargs: Any) -> BaseProcess:
        process: BaseProcess = process_class(*args, **kwargs)
        processes.append(process)
        return process

    context.Process = start_tracked
    return context


def _identity(batch: Any) -> Any:
    return batch


@contextmanager
def _ignored_warnings() -> Iterator[None]:
    """Ignore torch's warning about more processes than cores, and Python 3.12's about forking with other threads.

    Both are intended.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        yield
