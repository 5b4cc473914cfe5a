"""Memory that ran out: how it is recognised, and how to come back from it with nothing of the attempt left alive."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from shoestring.errors import RunError

T = TypeVar("T")

_MESSAGES = (
    "CUDA out of memory",
    "CUDA error: out of memory",  # the driver's own, which passes the allocator by
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_NOT_SUPPORTED",  # of a workspace that does not fit (accelerate: utils/memory.py)
    "CUBLAS_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
)
_BROKEN = ("illegal memory access", "unspecified launch failure", "device-side assert", "misaligned address")
"""After these the CUDA context is lost: nothing but another process helps, whatever else the message says."""


class HalfDoneError(RunError):
    """What ran out of memory may have changed part of the weights: only a checkpoint brings them back."""


def out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that memory ran out: by its type, or by what libraries write into a plain RuntimeError."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return (
        isinstance(error, RuntimeError)
        and any(known in text for known in _MESSAGES)
        and not any(known in text for known in _BROKEN)
    )


def error_message(error: BaseException) -> str:
    """The first line of an error's text, or its name."""
    return (str(error) or type(error).__name__).splitlines()[0][:300]


@dataclass(frozen=True)
class Failure:
    """Memory ran out, and the first line of the error message."""

    message: str


def catch_out_of_memory(act: Callable[[], T]) -> T | Failure:
    """What `act` returned, or that its memory ran out.

    An exception holds every frame it came through and so every tensor in them. Only a text leaves this function, so
    the tensors are free when it returns, where recovery inside a handler would find them all alive.

    Raises every other error.
    """
    try:
        return act()
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return Failure(error_message(error))


def retry_with_freed_memory(act: Callable[[], T], what: str) -> T:
    """The result of `act`; where its memory runs out, once more with all caches given back.

    Raises RunError where even that does not help.
    """
    done = catch_out_of_memory(act)
    if isinstance(done, Failure):
        free()
        done = catch_out_of_memory(act)
    if isinstance(done, Failure):
        raise RunError(
            f"no memory for {what}: {done.message}", hint="end what else takes memory here, then train again"
        )
    return done


def free() -> None:
    """Give back what nothing refers to: cycles of objects, and what CUDA's allocator keeps to itself."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


class RetriesWatch:
    """Says when CUDA's allocator has come so near to its end that it emptied its cache to go on.

    That costs time in every update, and comes before the error. Each tenfold is told, not each one.
    """

    def __init__(self) -> None:
        self._told_at = 1

    def seen(self, retries: int) -> str | None:
        """What to say when `retries` (torch's `num_alloc_retries`, of the whole process) have been; None for nothing.

        It is told at 1, 10, 100 and so on, or when it has passed these.
        """
        if retries < self._told_at:
            return None
        while self._told_at <= retries:
            self._told_at *= 10
        return (
            f"memory is nearly full: {retries} times so far the allocator had to empty its cache to find room, which "
            "slows updates down; a smaller micro_batch would not need it"
        )


def alloc_retries() -> int:
    """How often this process's CUDA allocator had to empty its cache to find room; 0 without CUDA."""
    return int(torch.cuda.memory_stats().get("num_alloc_retries", 0)) if torch.cuda.is_initialized() else 0
