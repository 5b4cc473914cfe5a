"""Recognizing out-of-memory errors, and freeing all tensors of a failed attempt."""

import weakref

import pytest
import torch

from shoestring.engine.memory import Failure, RetriesWatch, catch_out_of_memory, out_of_memory, retry_with_freed_memory
from shoestring.errors import RunError

CPU_MESSAGE = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate"
)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
        MemoryError(),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 14.56 GiB total capacity)"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError(f"{CPU_MESSAGE} 4000000000000000 bytes. Error code 12 (Cannot allocate memory)"),
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
