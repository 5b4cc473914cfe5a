"""What several processes agree on while a library's trainer trains in each of them.

A trainer knows nothing of failures in other processes: it would wait for them in a collective. So before each
collective of the library the processes agree that all of them have come so far. A process that fails agrees in place of
the collective that it does not reach, and training ends at the same place in all of them.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from shoestring.base.streams import flush
from shoestring.training.engine.memory import Failure, out_of_memory_message
from shoestring.training.engine.parallel.ranks import noticing_lost_peers
from shoestring.training.processes.one_process import Processes

_COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "reduce",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
)
"""Functions of torch.distributed through which Accelerate, transformers, TRL and FSDP2 communicate; those of FSDP2 have
other names from torch 2.13 on."""
_PATIENCE_SECONDS = 600.0
"""The others may generate for minutes before their next collective."""


class Agreement:
    """The agreement of the processes of one training."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._is_broken = False

    def require_all(self) -> None:
        """Raise the error of a process that has failed before it came here, in all processes.

        Call it before the processes communicate about anything else.
        """
        self._agree(lambda: None)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Return a context in which the library trains. An error of the body is raised in all processes.

        For a process that has run out of memory it is a torch.OutOfMemoryError in all of them.
        """
        if self._processes.count == 1:
            yield
            return
        self._is_broken = False
        failure: Exception | None = None
        try:
            with _preceding_collectives(self.require_all):
                yield
        except Exception as error:
            if self._is_broken:
                raise
            message = out_of_memory_message(error)
            # The error itself holds the tensors of the failed attempt.
            failure = error if message is None else torch.OutOfMemoryError(message)
        if failure is not None:
            with _impatient(failure):
                self._agree(lambda: _fail(failure))

    def _agree(self, act: Callable[[], None]) -> None:
        try:
            result = self._processes.call(act)
        except BaseException:
            self._is_broken = True
            raise
        if isinstance(result, Failure):
            self._is_broken = True
            raise torch.OutOfMemoryError(result.message)


@contextmanager
def _preceding_collectives(agree: Callable[[], None]) -> Iterator[None]:
    """Call `agree` before each collective of all processes in the body."""

    def preceded(collective: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(collective)
        def call(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("group") in (None, dist.group.WORLD):
                agree()
            with noticing_lost_peers():
                return collective(*args, **kwargs)

        return call

    originals = {name: getattr(dist, name) for name in _COLLECTIVES if hasattr(dist, name)}
    try:
        for name, collective in originals.items():
            setattr(dist, name, preceded(collective))
        yield
    finally:
        for name, collective in originals.items():
            setattr(dist, name, collective)


@contextmanager
def _impatient(failure: Exception) -> Iterator[None]:
    """End this process if the others do not answer: code of the script communicates in a way that is not known here."""

    def leave() -> None:
        traceback.print_exception(failure)
        flush()
        os._exit(1)

    timer = threading.Timer(_PATIENCE_SECONDS, leave)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _fail(error: Exception) -> NoReturn:
    raise error
