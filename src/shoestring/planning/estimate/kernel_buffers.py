"""Buffers of kernels whose size depends on the number of the GPU's multiprocessors."""

from __future__ import annotations

from shoestring.hardware.catalog import Device
from shoestring.hardware.multiprocessors import multiprocessors
from shoestring.planning.trace.record import Reduction, SplitSum

_SEMAPHORE_BYTES = 4
_LEAST_VALUES, _MOST_VALUES = 16, 256
"""min_values_per_thread and max_values_per_thread in `setReduceConfig`."""

_THREADS_OF_MULTIPROCESSOR = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}
"""The most threads of a multiprocessor (CUDA's programming guide, "Technical Specifications per Compute Capability");
2048 for all others."""


def buffer_bytes(kernel: Reduction | SplitSum, device: Device, *, deterministic: bool = True) -> tuple[int, ...]:
    """Return the bytes of each buffer that the kernel has at once on the device.

    `deterministic`: attention adds up its gradients in a fixed order, as training has it.
    """
    if isinstance(kernel, SplitSum):
        # `nsplits` in `mha_bwd` of `aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp`.
        return (kernel.bytes * (-(-multiprocessors(device) // kernel.parallel) if deterministic else 1),)
    assert device.compute_capability is not None
    threads = _THREADS_OF_MULTIPROCESSOR.get(device.compute_capability, 2048)
    # `setReduceConfig` in `aten/src/ATen/native/cuda/Reduce.cuh`.
    target = multiprocessors(device) * (threads // kernel.threads)
    if kernel.blocks > target:
        return ()
    blocks = max(
        min(-(-target // kernel.blocks), -(-kernel.values // _LEAST_VALUES)), -(-kernel.values // _MOST_VALUES)
    )
    return (kernel.bytes * blocks, _SEMAPHORE_BYTES * kernel.blocks) if blocks > 1 else ()
