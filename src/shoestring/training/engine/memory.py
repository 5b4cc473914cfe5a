"""Out-of-memory errors: recognizing them, and recovering without keeping any tensor of the failed attempt alive."""

import errno
import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

from shoestring.base.errors import RunError, ShoestringError
from shoestring.base.units import bytes_text
from shoestring.training.monitor.host_memory import describe_memory
from shoestring.training.session.stop import SessionOver

T = TypeVar("T")

_MESSAGES = re.compile(
    r"""
    (CUDA|HIP|XPU|MPS\ backend)\ out\ of\ memory  # of torch's allocators (c10/cuda/CUDACachingAllocator.cpp)
    | CUDA\ (driver\ )?error:\ out\ of\ memory  # of the driver, which bypasses the allocator
    | CUDNN_STATUS_ALLOC_FAILED | CUDNN_STATUS_INTERNAL_ERROR_(DEVICE|HOST)_ALLOCATION_FAILED
    | CUDNN_STATUS_NOT_SUPPORTED  # of a workspace that does not fit (accelerate: utils/memory.py)
    | (CUBLAS|CUSOLVER|CUSPARSE)_STATUS_ALLOC_FAILED | CUFFT_ALLOC_FAILED
    | CUBLAS_STATUS_NOT_INITIALIZED\ when\ calling\ `cublasCreate  # its workspace does not fit
    | Cuda\ failure\ (\d+\ )?'out\ of\ memory' | Failed\ to\ CUDA\ [cm]alloc  # of NCCL (include/alloc.h)
    | DefaultCPUAllocator:\ (can't\ allocate\ memory|not\ enough\ memory)  # c10/core/impl/alloc_cpu.cpp
    | not\ enough\ memory:\ you\ tried\ to\ allocate
    | Cannot\ allocate\ memory\ \(12\) | \[Errno\ 12\]\ Cannot\ allocate\ memory
    | (^|:\ +)std::bad_alloc$ | \A(bad\ allocation|Cannot\ allocate\ memory)\Z
    """,
    re.VERBOSE | re.MULTILINE,
)
"""What libraries write into a RuntimeError, and Windows' C++ library as a whole message."""
_WORKER = re.compile(r"\ACaught \w+ in .+ process \d+\.\nOriginal Traceback")
_WORKER_ERROR = re.compile(r"^([\w.]*(MemoryError|OutOfMemoryError)\b|OSError: \[Errno 12\])", re.MULTILINE)
"""The text of an error of a data-loading process: its traceback, and in its last lines the error."""
_CONTEXT_LOST = (
    "illegal memory access",
    "unspecified launch failure",
    "device-side assert triggered",  # "device-side assertions" are in the advice below every error of CUDA
    "misaligned address",
)
"""After these errors the CUDA context is lost: only another process helps, whatever else the message says."""
_OTHER_PURPOSE = (ShoestringError, SessionOver)
"""Errors whose author has already decided what they mean: a half done step, a message for the user, a stop."""


class HalfDoneError(RunError):
    """An out-of-memory error that may have left weights partly updated: only a checkpoint restores them."""


class NoMemoryError(RunError):
    """An out-of-memory error in a part of the run that no smaller microbatch can help."""


def out_of_memory(error: BaseException) -> bool:
    """Return whether `error` is an out-of-memory error or wraps one, as `out_of_memory_message`."""
    return out_of_memory_message(error) is not None


def out_of_memory_message(error: BaseException) -> str | None:
    """Return the first line of the out-of-memory error that `error` is or wraps; None if it is another error.

    The error itself is not returned: a handler that stores it in a variable would keep the failed tensors alive.

    It is recognized by its type, or by a library's message in a RuntimeError. An error wraps the one that it was raised
    from, or during whose handling it was raised. After `raise ... from None` it stands for itself, as in a traceback.
    An exception group is out of memory if all of its errors are.
    """
    if isinstance(error, _OTHER_PURPOSE):
        return None
    text = str(error)
    if isinstance(error, RuntimeError) and any(message in text for message in _CONTEXT_LOST):
        return None
    if _is_direct(error, text):
        return error_message(error)
    if isinstance(error, BaseExceptionGroup):
        messages = [out_of_memory_message(member) for member in error.exceptions]
        return messages[0] if all(messages) else None
    # torch's compiler raises its errors from None, with the original in an attribute.
    wrapped = getattr(error, "inner_exception", None) or error.__cause__
    if wrapped is None and not error.__suppress_context__:
        wrapped = error.__context__
    return out_of_memory_message(wrapped) if isinstance(wrapped, BaseException) else None


def _is_direct(error: BaseException, text: str) -> bool:
    """Return whether the error itself, with this text, is an out-of-memory error."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if _WORKER.match(text):
        return bool(_WORKER_ERROR.search(text) or (isinstance(error, RuntimeError) and _MESSAGES.search(text)))
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and bool(_MESSAGES.search(text))


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
    except Exception as error:
        message = out_of_memory_message(error)
        if message is None:
            raise
        return Failure(message)


def retry_with_freed_memory(act: Callable[[], T], description: str) -> T:
    """Return the result of `act`; on out-of-memory, free all caches and call it once more.

    `description` completes the error message "out of memory while ...".

    Raises NoMemoryError if the second call runs out of memory as well.
    """
    result = catch_out_of_memory(act)
    if isinstance(result, Failure):
        free_unused_memory()
        result = catch_out_of_memory(act)
    if isinstance(result, Failure):
        raise no_memory_error(description, result.message)
    return result


@contextmanager
def explaining_out_of_memory(description: str) -> Iterator[None]:
    """Raise NoMemoryError for an out-of-memory error in the body, "out of memory while `description`"."""
    message: str | None = None
    try:
        yield
    except Exception as error:
        message = out_of_memory_message(error)
        if message is None:
            raise
    if message is not None:  # outside of the handler, which references the failed tensors
        free_unused_memory()
        raise no_memory_error(description, message)


def no_memory_error(description: str, message: str) -> NoMemoryError:
    """Return the error for an out-of-memory error while doing what `description` says, if it says something: with what
    memory there was.
    """
    return NoMemoryError(
        f"out of memory while {description}: {message}" if description else f"out of memory: {message}",
        problems=describe_memory(),
        hint="end other processes that use memory on this machine, use a smaller model or less data at once "
        "(workers=0, stage=no), or a machine with more memory, then start the command again",
    )


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


class UnusedMemoryWatch:
    """Detects that CUDA's allocator reserves much memory in blocks that the next tensors do not fit.

    It happens with microbatches whose samples differ in length, and grows during a run. It is reported once.
    """

    def __init__(self, remedy: str) -> None:
        """`remedy` tells the user what to set for expandable segments."""
        self._remedy, self._is_reported = remedy, False

    def observe(self, allocated: int | None, reserved: int | None, capacity: int) -> str | None:
        """Return the message for the peaks of allocated and reserved memory on a device of so many bytes; None for no
        message.
        """
        if self._is_reported or not allocated or not reserved:
            return None
        if reserved < _UNUSED * allocated or reserved < _NOTICEABLE * capacity:
            return None
        self._is_reported = True
        return (
            f"GPU memory: {bytes_text(reserved)} of {bytes_text(capacity)} are reserved, though tensors take "
            f"{bytes_text(allocated)} at most, because blocks for samples of one length do not fit those of another, "
            f"and that can grow until no memory is left; {self._remedy} avoids it and changes no result"
        )


_UNUSED = 1.3
"""Reserved over allocated memory from which on a note tells of it."""
_NOTICEABLE = 0.5
"""The share of the device's memory from which on it is worth a note."""


def alloc_retries() -> int:
    """Return how often this process's CUDA allocator had to empty its cache to find space; 0 without CUDA."""
    return int(torch.cuda.memory_stats().get("num_alloc_retries", 0)) if torch.cuda.is_initialized() else 0
