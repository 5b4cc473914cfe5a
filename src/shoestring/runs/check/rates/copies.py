"""The time of copies between the host and a GPU, and of all-reduces between the GPUs of this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from shoestring.hardware.measured import PAGEABLE, PINNED, TOGETHER
from shoestring.runs.check.rates.clock import sample, wait
from shoestring.runs.check.rates.grid import Grid

Copy = tuple[str, int]
"""The kind of a copy (`CopyTiming.kind`) and its bytes."""


def copy_samples(grid: Grid, device: torch.device, gpus: int) -> Iterator[tuple[Copy, float]]:
    """Yield one sample of each copy; nothing on a CPU."""
    if device.type != "cuda":
        return
    for size in grid.copied_bytes:
        # Page-locked, as the batches are that a training run copies.
        on_host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        on_gpu = torch.empty(size, dtype=torch.uint8, device=device)
        pageable = torch.empty(size, dtype=torch.uint8)
        for kind, target, source in (
            (PINNED, on_gpu, on_host),
            (PAGEABLE, on_gpu, pageable),
            ("device to host", on_host, on_gpu),
        ):
            target.copy_(source, non_blocking=True)
            yield (kind, size), sample(lambda t=target, s=source: t.copy_(s, non_blocking=True), 4, device)  # type: ignore[misc]
        if gpus > 1:
            yield (TOGETHER, size), _seconds_together(on_host, gpus)
            yield ("all-reduce", size), _all_reduce_seconds(size, gpus)


def _seconds_together(on_host: torch.Tensor, gpus: int) -> float:
    """Return the seconds in which each GPU has a copy of `on_host`, if all begin at once."""
    targets = [torch.empty_like(on_host, device=f"cuda:{index}") for index in range(gpus)]
    seconds = []
    for _ in range(3):
        _wait_for_all(gpus)
        start = time.perf_counter()
        for target in targets:
            target.copy_(on_host, non_blocking=True)
        _wait_for_all(gpus)
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def _all_reduce_seconds(size: int, gpus: int) -> float:
    tensors = [torch.ones(size // 4, device=f"cuda:{index}") for index in range(gpus)]
    seconds = []
    for _ in range(3):
        _wait_for_all(gpus)
        start = time.perf_counter()
        torch.cuda.nccl.all_reduce(tensors)
        _wait_for_all(gpus)
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])  # the first one initializes NCCL


def _wait_for_all(gpus: int) -> None:
    for index in range(gpus):
        wait(torch.device("cuda", index))
