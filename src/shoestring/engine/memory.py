"""Out-of-memory errors: recognizing them, and recovering without keeping any tensor of the failed attempt alive."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from shoestring.errors import RunError

T = TypeVar("T")

_MESSAGES = (
    "CUDA out of memory",
    "CUDA error: out of memory",  # of the driver, which bypasses the allocator
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_NOT_SUPPORTED",  # of a workspace that does not fit (accelerate: utils/memory.py)
    "CUBLAS_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
)
_CONTEXT_LOST = ("illegal memory access", "unspecified launch failure", "device-side assert", "misaligned address")
"""After these errors the CUDA context is lost: only another process helps, whatever else the message says."""


class HalfDoneError(RunError):
    """An out-of-memory error that may have left weights partly updated: only a checkpoint restores them."""


def out_of_memory(error: BaseException) -> bool:
    """Return whether `error` is an out-of-memory error: by its type, or by a library's message in a RuntimeError."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return (
        isinstance(error, RuntimeError)
        and any(message in text for message in _MESSAGES)
        and not any(message in text for message in _CONTEXT_LOST)
    )


def error_message(error: BaseException) -> str:
    """Return the first line of an error's text, or the name of its type."""
    return (str(error) or type(error).__name__).splitlines()[0][:300]


@dataclass(frozen=True)
class Failure:
    """An out-of-memory failure, by the first line of its error message."""

    message: str


def catch_out_of_memory(act: Callable[[], T]) -> T | Failure:
    """Return the result of `act`, or a `Failure` if it ran out of memory.

    An exception references every frame that it passed through, and so all their tensors. Only the message leaves this
    function, so these tensors are freed when it returns; a recovery within the handler would find them all alive.

    Raises every other error.
    """
    try:
        return act()
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return Failure(error_message(error))


def retry_with_freed_memory(act: Callable[[], T], description: str) -> T:
    """Return the result of `act`; on out-of-memory, free all caches and call it once more.

    `description` completes the error message "out of memory while ...".

    Raises RunError if the second call runs out of memory as well.
    """
    result = catch_out_of_memory(act)
    if isinstance(result, Failure):
        free_unused_memory()
        result = catch_out_of_memory(act)
    if isinstance(result, Failure):
        raise RunError(
            f"out of memory while {description}: {result.message}",
            hint="end other processes that use memory on this machine, then train again",
        )
    return result


def free_unused_memory() -> None:
    """Free unreferenced memory: reference cycles, and the cache of CUDA's allocator."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


class RetriesWatch:
    """Detects that memory is so scarce that CUDA's allocator had to empty its cache to continue.

    That slows down every update and precedes an out-of-memory error. It is reported at each tenfold number of retries.
    """

    def __init__(self) -> None:
        self._next_report = 1

    def observe(self, retries: int) -> str | None:
        """Return the message for `retries`, torch's `num_alloc_retries` of the whole process; None for no message.

        There is a message when the number reaches or passes 1, 10, 100 and so on.
        """
        if retries < self._next_report:
            return None
        while self._next_report <= retries:
            self._next_report *= 10
        return (
            f"GPU memory is nearly full: the allocator has emptied its cache {retries} times so far to find space, "
            "which slows updates down; a smaller micro_batch would avoid it"
        )


def alloc_retries() -> int:
    """Return how often this process's CUDA allocator had to empty its cache to find space; 0 without CUDA."""
    return int(torch.cuda.memory_stats().get("num_alloc_retries", 0)) if torch.cuda.is_initialized() else 0
