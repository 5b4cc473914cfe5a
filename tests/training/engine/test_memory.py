"""Recognizing out-of-memory errors, and freeing all tensors of a failed attempt."""

import errno
import weakref

import numpy as np
import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch._utils import ExceptionWrapper

from shoestring.base.errors import RunError
from shoestring.base.units import GIB
from shoestring.training.engine.memory import (
    Failure,
    HalfDoneError,
    NoMemoryError,
    RetriesWatch,
    UnusedMemoryWatch,
    catch_out_of_memory,
    explaining_out_of_memory,
    out_of_memory,
    retry_with_freed_memory,
)
from shoestring.training.session.stop import SessionOver

CPU_MESSAGE = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate"
)


def chained(error, cause):
    error.__cause__ = cause
    return error


def while_handling(error, context):
    error.__context__ = context
    return error


def hidden(error, context):
    """The error of `raise error from None` while `context` was handled."""
    error.__context__, error.__suppress_context__ = context, True
    return error


def numpy_error():
    """Return what numpy raises for an array that is larger than any memory; its class is private."""
    with pytest.raises(MemoryError) as raised:
        np.empty(2**58)
    return raised.value


def in_worker(error):
    """Return what a DataLoader raises for the error of one of its processes."""
    try:
        try:
            raise error
        except Exception:  # noqa: BLE001
            wrapper = ExceptionWrapper(where="in DataLoader worker process 0")
        wrapper.reraise()
    except Exception as raised:  # noqa: BLE001
        raised.__context__ = None  # nothing but its class and text comes from the process
        return raised


NCCL_ERROR = "NCCL error in: NCCLUtils.hpp:340\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
        MemoryError(),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 14.56 GiB total capacity)"),
        RuntimeError(
            "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call\n"
            "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
        ),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError(f"{NCCL_ERROR}Failed to CUDA calloc 8388608 bytes"),
        RuntimeError(f"{NCCL_ERROR}Cuda failure 2 'out of memory'"),
        RuntimeError(f"{CPU_MESSAGE} 4000000000000000 bytes. Error code 12 (Cannot allocate memory)"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] data. DefaultCPUAllocator: not enough memory: you tried to"),
        RuntimeError("not enough memory: you tried to allocate 8 bytes."),
        RuntimeError("std::bad_alloc"),
        RuntimeError("pybind11 call failed: std::bad_alloc"),
        RuntimeError("bad allocation"),
        MemoryError("std::bad_alloc"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("unable to mmap 400 bytes from file </torch_1>: Cannot allocate memory (12)"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
        RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED"),
        RuntimeError("HIP out of memory. Tried to allocate 2 GiB"),
        numpy_error(),
        # Errors of data-loading processes, which torch makes from their text.
        in_worker(MemoryError("no memory")),
        in_worker(OSError(errno.ENOMEM, "Cannot allocate memory")),
        in_worker(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")),
        in_worker(numpy_error()),
        # Wrapped errors.
        chained(ValueError("the step failed"), MemoryError()),
        chained(ValueError("the step failed"), chained(KeyError("x"), torch.OutOfMemoryError("CUDA out of memory"))),
        while_handling(KeyError("buffer"), MemoryError()),
        ExceptionGroup("tasks", [MemoryError(), chained(ValueError("task"), MemoryError())]),
        chained(ValueError("tasks"), ExceptionGroup("tasks", [MemoryError()])),
        BackendCompilerFailed(compile, torch.OutOfMemoryError("no memory"), None),
    ],
)
def test_out_of_memory_by_type_or_message(error):
    assert out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: unspecified launch failure"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("CUBLAS_STATUS_ALLOC_FAILED after an illegal memory access"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        ValueError("CUDA out of memory"),
        RunError("CUDA out of memory"),
        KeyboardInterrupt(),
        RuntimeError("view size is not compatible with the tensor's memory format"),
        RuntimeError("Pin memory thread exited unexpectedly"),
        RuntimeError("bad allocation strategy 'x'"),
        RuntimeError("the option `std::bad_alloc` is unknown"),
        RuntimeError("Cannot allocate memory for a negative size"),
        RuntimeError("CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasSetStream`"),
        OSError(errno.ENOSPC, "No space left on device"),
        OSError("[Errno 12] in a text of its own"),
        in_worker(ValueError("a MemoryError was expected here")),
        in_worker(KeyError("memory")),
        chained(ValueError("the step failed"), KeyError("memory")),
        hidden(ValueError("the answer is final"), MemoryError()),
        chained(RunError("an explained error"), MemoryError()),
        chained(HalfDoneError("no memory"), torch.OutOfMemoryError("CUDA out of memory")),
        while_handling(SessionOver("SIGTERM"), MemoryError()),
        ExceptionGroup("tasks", [MemoryError(), ValueError("another task")]),
        chained(RuntimeError("illegal memory access"), MemoryError()),
        chained(ValueError("the step failed"), RuntimeError("illegal memory access: CUDA out of memory")),
    ],
)
def test_other_errors_are_not_out_of_memory(error):
    assert not out_of_memory(error)


def test_error_of_the_cpu_allocator():
    failure = catch_out_of_memory(lambda: torch.empty(10**15))
    assert isinstance(failure, Failure)
    assert "DefaultCPUAllocator" in failure.message


def test_other_errors_are_raised():
    with pytest.raises(ZeroDivisionError):
        catch_out_of_memory(lambda: 1 // 0)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        catch_out_of_memory(lambda: fail(RuntimeError("CUDA error: an illegal memory access was encountered")))


def fail(error):
    raise error


def test_failure_has_the_message_of_the_cause():
    failure = catch_out_of_memory(lambda: fail(chained(ValueError("the step failed"), MemoryError("no 8 GiB"))))
    assert failure == Failure("no 8 GiB")


def test_explanation_says_what_was_done_and_what_memory_there_was():
    with pytest.raises(NoMemoryError) as error, explaining_out_of_memory("loading the data"):
        raise MemoryError("no 8 GiB")
    assert error.value.message == "out of memory while loading the data: no 8 GiB"
    assert "host memory" in error.value.problems[0] and "workers=0" in error.value.hint
    for other in (ValueError("no data"), error.value):
        with pytest.raises(type(other)) as unchanged, explaining_out_of_memory("loading the data"):
            raise other
        assert unchanged.value is other


def test_tensors_of_a_failed_attempt_are_freed():
    references = []

    def deep(depth, inputs):
        hidden = torch.relu(inputs * depth)
        references.append(weakref.ref(hidden))
        if depth == 0:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return deep(depth - 1, hidden).sum()

    assert isinstance(catch_out_of_memory(lambda: deep(20, torch.ones(8, requires_grad=True))), Failure)
    assert len(references) == 21
    assert not any(reference() is not None for reference in references)


def test_retry_with_freed_memory():
    tries = []

    def act(until):
        tries.append(1)
        if len(tries) < until:
            raise MemoryError("no 8.00 GiB")
        return "done"

    assert retry_with_freed_memory(lambda: act(2), "saving a checkpoint") == "done"
    with pytest.raises(RunError, match=r"out of memory while saving a checkpoint: no 8\.00 GiB"):
        retry_with_freed_memory(lambda: act(100), "saving a checkpoint")
    assert len(tries) == 4


def test_allocator_retries_are_reported_tenfold():
    watch = RetriesWatch()
    reported = {count: bool(watch.observe(count)) for count in (0, 0, 1, 2, 9, 10, 11, 99, 250, 999, 1000)}
    assert [count for count, is_reported in reported.items() if is_reported] == [1, 10, 250, 1000]


def test_unused_memory_is_reported_once_if_it_is_much_of_the_device():
    watch = UnusedMemoryWatch("allocator=expandable")
    assert watch.observe(None, None, 0) is None  # no GPU
    assert watch.observe(2 * GIB, 6 * GIB, 16 * GIB) is None  # little of the device
    assert watch.observe(9 * GIB, 10 * GIB, 16 * GIB) is None  # tensors take nearly all
    message = watch.observe(3 * GIB, 8 * GIB, 16 * GIB)
    assert (
        message and "8.00 GiB of 16.00 GiB" in message and "3.00 GiB" in message and "allocator=expandable" in message
    )
    assert watch.observe(3 * GIB, 9 * GIB, 16 * GIB) is None
