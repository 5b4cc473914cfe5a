"""The processes that train together, each on a GPU of its own, and what they agree on.

After each piece of work the ranks agree whether all of them have completed it, before any of them uses what was
exchanged. Where collectives are open while memory can run out, a rank that fails completes them first
(`overlap.py`). The agreement goes over gloo between the hosts, so that no rank waits for its GPU.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Generic, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from shoestring.base.errors import CheckpointError, RunError, UsageError
from shoestring.training.engine.memory import Failure, HalfDoneError, no_memory_error, out_of_memory_message
from shoestring.training.engine.parallel.errors import PeerLostError, RanksApartError
from shoestring.training.session.stop import SessionOver

T = TypeVar("T")

TIMEOUT = timedelta(days=30)
"""A rank may wait for hours while another one evaluates. The death of a rank is noticed by the process that started
it, not by a timeout."""

_COMPLETE, _OUT_OF_MEMORY, _HALF_DONE, _FAILED, _STOPPED = range(5)
"""How a piece of work has ended, the one with the highest number decides for all."""
_MESSAGE_BYTES = 2000
_ERRORS = {kind.__name__: kind for kind in (UsageError, RunError, CheckpointError)}
"""The errors that are raised on all ranks with their own type; others are a RunError there."""


_PATIENCE_SECONDS = 10.0
"""After work with collectives has failed on this rank, for the others to come to the same agreement: they may wait in a
collective that this rank will never open."""


@dataclass(frozen=True)
class Ranks:
    """The ranks of a run. A run of one process has one rank, for which no method communicates."""

    rank: int = 0
    size: int = 1
    control: Any = None
    """The group in which the hosts communicate."""
    pairs: tuple[Any, ...] = ()
    """For each level of the tree of logical shards, the group of this rank and another one."""

    @classmethod
    def join(cls) -> Self:
        """Return the ranks of the process group of torch.distributed, if there is one. All ranks must call this."""
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return cls()
        rank, size = dist.get_rank(), dist.get_world_size()
        with noticing_lost_peers():
            control = dist.new_group(backend="gloo", timeout=TIMEOUT)
            pairs = tuple(_partners(level, rank, size) for level in range(size.bit_length() - 1))
        return cls(rank, size, control, pairs)

    @property
    def can_overlap(self) -> bool:
        """Whether gradients can be exchanged during backward."""
        return True

    @property
    def is_first(self) -> bool:
        """Whether this rank writes to the run's directory."""
        return self.rank == 0

    def with_own_group(self) -> Self:
        """Return the same ranks with a group of their own for the hosts, for a thread. All ranks must call this."""
        with noticing_lost_peers():
            control = dist.new_group(backend="gloo", timeout=TIMEOUT) if self.size > 1 else None
        return replace(self, control=control)

    def call(self, act: Callable[[], T], position: Callable[[], float] | None = None) -> T | Failure:
        """Call `act` on every rank, and return its result if all of them have completed it.

        Returns a `Failure` on every rank if one has run out of memory. Raises HalfDoneError on every rank if one of
        them has, SessionOver if one has to stop, and RunError if another one has failed; an error of `act` itself is
        raised here.

        If `act` opens collectives, `position` returns how many this rank has opened. Raises RanksApartError if one has
        run out of memory where the others cannot return with it.
        """
        return self.call_and_gather(act, lambda _: (), count=0, position=position)[0]

    def call_and_gather(
        self,
        act: Callable[[], T],
        facts: Callable[[T], Sequence[float]],
        *,
        count: int,
        position: Callable[[], float] | None = None,
    ) -> tuple[T | Failure, list[list[float]]]:
        """Call `act` like `call`, and return with its result the `count` facts of each rank's result."""
        if self.size == 1:
            result = act()
            return result, [list(facts(result))]
        outcome = _call(act)
        values = [0.0] * count if outcome.result is None else facts(outcome.result[0])
        place = position() if position else 0.0
        rows = self._gather(
            torch.tensor([outcome.kind, place, *values], dtype=torch.float64),
            patience=_PATIENCE_SECONDS if position and outcome.kind != _COMPLETE else None,
        )
        if not rows:
            raise outcome.error or RanksApartError(Failure(outcome.message), on_all_ranks=False)
        worst = max(row[0] for row in rows)
        if worst == _COMPLETE:
            assert outcome.result is not None
            return outcome.result[0], [row[2:] for row in rows]
        messages = self._exchange_messages(f"{outcome.error_type}: {outcome.message}")
        if outcome.error:
            raise outcome.error
        rank = next(rank for rank, row in enumerate(rows) if row[0] == worst)
        kind, _, message = messages[rank].partition(": ")
        text = f"GPU {rank}: {message}"
        if worst == _STOPPED:
            raise SessionOver(message)
        if worst == _FAILED:
            raise _ERRORS.get(kind, RunError)(text)
        if worst == _HALF_DONE:
            raise HalfDoneError(text, hint="weights may be partly updated: resume from the last checkpoint")
        if len({row[1] for row in rows}) > 1:
            raise RanksApartError(Failure(text), on_all_ranks=True)
        return Failure(text), []

    def call_first(self, act: Callable[[], T]) -> T | None:
        """Call `act` on the first rank only, and return its result there; the others wait, and get None.

        The errors are those of `call`, and an out-of-memory error as well.
        """
        result = self.call(act if self.is_first else lambda: None)
        if isinstance(result, Failure):
            raise no_memory_error("", result.message)
        return result

    def call_in_turn(self, act: Callable[[], T]) -> T:
        """Call `act` on the first rank, then on the others, which can read what it has written.

        The errors are those of `call_first`.
        """
        results = []
        for is_turn in (self.is_first, not self.is_first) if self.size > 1 else (True,):
            failure = self.call(lambda: results.append(act()) if is_turn else None)  # noqa: B023
            if failure:
                raise no_memory_error("", failure.message)
        return results[0]

    def share(self, act: Callable[[], Any]) -> Any:
        """Call `act` on the first rank only, and return its result, which is JSON, on all of them."""
        value = self.call_first(act)
        if self.size == 1:
            return value
        content = json.dumps(value).encode()
        (length,) = self.gather([len(content)])[0]
        buffer = torch.frombuffer(bytearray(content) if self.is_first else bytearray(int(length)), dtype=torch.uint8)
        with noticing_lost_peers():
            dist.broadcast(buffer, 0, group=self.control)
        return json.loads(bytes(buffer.tolist()))

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Return the values of each rank."""
        return [list(values)] if self.size == 1 else self._gather(torch.tensor(values, dtype=torch.float64))

    def gather_tensor(self, tensor: Tensor) -> list[list[Any]]:
        """Return the values of a tensor on the host, of the same shape on each rank."""
        return [tensor.tolist()] if self.size == 1 else self._gather(tensor)

    def add(self, *tensors: Tensor) -> None:
        """Add the tensors of all ranks in place, in the tree of the logical shards: (0 + 1) + (2 + 3).

        Each level adds those of two ranks, and two numbers have the same sum in either order: so all ranks get the same
        bits, whatever algorithm the backend uses.
        """
        for group in self.pairs:
            _exchange(partial(dist.all_reduce, group=group, async_op=True), tensors)

    def broadcast(self, *tensors: Tensor, rank: int = 0) -> None:
        """Replace the tensors by those of `rank`."""
        if self.size > 1:
            _exchange(partial(dist.broadcast, src=rank, async_op=True), tensors)

    def send_to_first(self, content: bytes) -> list[bytes]:
        """Return the contents that the other ranks have sent, on the first rank; an empty list on those."""
        lengths = [int(length) for (length,) in self.gather([len(content)])]
        with noticing_lost_peers():
            if not self.is_first:
                dist.send(torch.frombuffer(bytearray(content), dtype=torch.uint8), 0, group=self.control)
                return []
            received = []
            for rank in range(1, self.size):
                buffer = bytearray(lengths[rank])
                dist.recv(torch.frombuffer(buffer, dtype=torch.uint8), rank, group=self.control)
                received.append(bytes(buffer))
            return received

    def collect(self, tensor: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the tensors on the host of all ranks, which have these `shapes`, on the first rank; elsewhere none."""
        with noticing_lost_peers():
            if not self.is_first:
                if tensor.numel():
                    dist.send(tensor, 0, group=self.control)
                return []
            tensors = [tensor, *(torch.empty(list(shape), dtype=tensor.dtype) for shape in shapes[1:])]
            for rank, received in enumerate(tensors):
                if rank and received.numel():
                    dist.recv(received, rank, group=self.control)
            return tensors

    def _exchange_messages(self, message: str) -> list[str]:
        """Return the message of each rank, cut to a length that all of them can receive."""
        content = message.encode(errors="replace")[:_MESSAGE_BYTES]
        rows = self._gather(torch.tensor([*content, *bytes(_MESSAGE_BYTES - len(content))], dtype=torch.uint8))
        return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows]

    def _gather(self, tensor: Tensor, patience: float | None = None) -> list[list[Any]]:
        """Return the tensors of all ranks; an empty list if not all of them have come within `patience` seconds."""
        rows = [torch.empty_like(tensor) for _ in range(self.size)]
        with noticing_lost_peers():
            work = dist.all_gather(rows, tensor, group=self.control, async_op=True)
            assert work is not None
            if patience is not None and not _completes(work, patience):
                return []
            work.wait()
        return [row.tolist() for row in rows]


ONE_RANK = Ranks()
"""The ranks of a run of one process."""


@dataclass(frozen=True)
class _Outcome(Generic[T]):
    """How a piece of work has ended on this rank."""

    kind: int
    result: tuple[T] | None = None
    message: str = ""
    error: BaseException | None = None

    @property
    def error_type(self) -> str:
        return type(self.error).__name__


def _call(act: Callable[[], T]) -> _Outcome[T]:
    """Call `act`. An out-of-memory error, whose frames hold the tensors of the failed attempt, is not returned."""
    try:
        return _Outcome(_COMPLETE, (act(),))
    except SessionOver as over:
        return _Outcome(_STOPPED, message=over.reason, error=over)
    except HalfDoneError as error:
        return _Outcome(_HALF_DONE, message=error.message)
    except Exception as error:  # noqa: BLE001  (the other ranks have to know of any error)
        message = out_of_memory_message(error)
        if message is None:
            return _Outcome(_FAILED, message=str(error) or type(error).__name__, error=error)
        return _Outcome(_OUT_OF_MEMORY, message=message)


def _partners(level: int, rank: int, size: int) -> Any:
    """Return the group of `rank` and the rank that differs in bit `level`; every rank creates all groups."""
    own = None
    for first in range(size):
        second = first ^ (1 << level)
        if first < second:
            group = dist.new_group([first, second], timeout=TIMEOUT)
            own = group if rank in (first, second) else own
    return own


def _exchange(start: Callable[[Tensor], Any], tensors: Sequence[Tensor]) -> None:
    """Start a collective for each of the tensors, then wait for all: each rank can work while it waits for another."""
    with noticing_lost_peers():
        for work in [start(tensor) for tensor in tensors]:
            work.wait()


def _completes(work: Any, seconds: float) -> bool:
    """Return whether a collective completes within so many seconds. If it fails, `wait` raises the error."""
    give_up_at = time.monotonic() + seconds
    while not work.is_completed():
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.005)
    return True


@contextmanager
def noticing_lost_peers() -> Iterator[None]:
    """Raise PeerLostError for an error of a collective."""
    try:
        yield
    except RuntimeError as error:
        if out_of_memory_message(error) is not None:
            raise
        raise PeerLostError(f"the connection to another process of this run is lost: {error}") from error


@contextmanager
def ending_ranks_apart(ranks: Ranks) -> Iterator[None]:
    """Raise RanksApartError for an out-of-memory error of this rank, whose part in a collective the others wait for."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        message = out_of_memory_message(error)
        if message is None or ranks.size == 1:
            raise
        raise RanksApartError(Failure(message), on_all_ranks=False) from error
