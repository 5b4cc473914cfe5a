"""The processes that train together, each on a GPU of its own, and what they exchange in an update.

No collective of gradients is open while memory can run out: after each piece of work the ranks first agree whether all
of them have completed it. That agreement goes over gloo between the hosts, so that no rank waits for its GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from shoestring.engine.memory import Failure, HalfDoneError, out_of_memory_message
from shoestring.errors import Interruption, RunError

T = TypeVar("T")

TIMEOUT = timedelta(days=30)
"""A rank may wait for hours while another one evaluates. The death of a rank is noticed by the process that started
it, not by a timeout."""

_COMPLETE, _OUT_OF_MEMORY, _HALF_DONE, _FAILED = range(4)
_MESSAGE_BYTES = 2000


class PeerLostError(Interruption):
    """Another rank has ended without a word. This one can only end too: nothing of the update can be completed."""


class Ranks:
    """The ranks of a run, in the same order on each of them. A run of one process has one rank."""

    def __init__(self, *, logical_shards: int = 1, device: torch.device | None = None) -> None:
        """Use the process group of torch.distributed if it is initialized; all ranks must construct this at once."""
        self.logical_shards = logical_shards
        is_distributed = dist.is_available() and dist.is_initialized()
        self.rank, self.size = (dist.get_rank(), dist.get_world_size()) if is_distributed else (0, 1)
        if self.size > 1:
            self._control = dist.new_group(backend="gloo", timeout=TIMEOUT)
            self._pairs = [_partners(level, self.rank, self.size) for level in range(self.size.bit_length() - 1)]

    @property
    def own_shards(self) -> range:
        """The logical shards that this rank computes: consecutive ones, so that their sum is a branch of the tree."""
        count = self.logical_shards // self.size
        return range(self.rank * count, (self.rank + 1) * count)

    def together(self, act: Callable[[], T]) -> T | Failure:
        """Call `act` on every rank, and return its result if all of them have completed it.

        Returns a `Failure` on every rank if one has run out of memory. Raises HalfDoneError on every rank if one of
        them has, and RunError if another one has failed; an error of `act` itself is raised here.
        """
        if self.size == 1:
            return act()
        outcome, message, error, result = _COMPLETE, "", None, None
        try:
            result = act()
        except HalfDoneError as half_done:
            outcome, message = _HALF_DONE, half_done.message
        except Exception as failure:
            memory = out_of_memory_message(failure)
            outcome, message = (_FAILED, str(failure)) if memory is None else (_OUT_OF_MEMORY, memory)
            error = failure if memory is None else None
        if not (outcomes := self._agree(outcome)):
            return result  # type: ignore[return-value]
        messages = self._exchange_messages(message)
        if error:
            raise error
        worst = max(outcomes)
        rank = outcomes.index(worst)
        text = f"GPU {rank}: {messages[rank]}"
        if worst == _FAILED:
            raise RunError(text)
        if worst == _HALF_DONE:
            raise HalfDoneError(text, hint="weights may be partly updated: resume from the last checkpoint")
        return Failure(text)

    def maximum(self, values: Sequence[int]) -> list[int]:
        """Return the largest of each of the values of all ranks."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int64)
        with _noticing_lost_peers():
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self._control)
        return tensor.tolist()

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Add the tensors of all ranks in place, in the tree of the logical shards: (0 + 1) + (2 + 3).

        Each level adds those of two ranks, and two numbers have the same sum in either order: so all ranks get the same
        bits, whatever algorithm the backend uses.
        """
        for group in self._pairs if self.size > 1 else ():
            with _noticing_lost_peers():
                works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
                for work in works:
                    work.wait()

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Replace the tensors by those of rank 0."""
        if self.size > 1:
            with _noticing_lost_peers():
                for tensor in tensors:
                    dist.broadcast(tensor, 0)

    def _agree(self, outcome: int) -> list[int]:
        """Return the outcomes of all ranks; an empty list if all are complete."""
        if self.maximum([outcome]) == [_COMPLETE]:
            return []
        return [int(tensor) for tensor in self._gather(torch.tensor([outcome]))]

    def _exchange_messages(self, message: str) -> list[str]:
        content = message.encode(errors="replace")[:_MESSAGE_BYTES]
        padded = torch.zeros(_MESSAGE_BYTES, dtype=torch.uint8)
        padded[: len(content)] = torch.frombuffer(bytearray(content or b"\0"), dtype=torch.uint8)[: len(content)]
        return [bytes(tensor.tolist()).rstrip(b"\0").decode(errors="replace") for tensor in self._gather(padded)]

    def _gather(self, tensor: Tensor) -> list[Tensor]:
        gathered = [torch.empty_like(tensor) for _ in range(self.size)]
        with _noticing_lost_peers():
            dist.all_gather(gathered, tensor, group=self._control)
        return gathered


def _partners(level: int, rank: int, size: int) -> Any:
    """Return the group of `rank` and the rank that differs in bit `level`; every rank creates all groups."""
    own = None
    for first in range(size):
        second = first ^ (1 << level)
        if first < second:
            group = dist.new_group([first, second], timeout=TIMEOUT)
            own = group if rank in (first, second) else own
    return own


@contextmanager
def _noticing_lost_peers() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if out_of_memory_message(error) is not None:
            raise
        raise PeerLostError(f"the connection to another process of this run is lost: {error}") from error
