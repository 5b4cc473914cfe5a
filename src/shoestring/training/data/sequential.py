"""Batches of a dataset from its first sample to its last, for evaluation."""

import time
from collections.abc import Generator
from typing import Any

import torch

from shoestring.base.settings import MemoryFormat
from shoestring.training.data.batches import SampleRandomness, evaluation_collate_function, fetch, to_device
from shoestring.training.data.workers import Request, Workers

_START_SECONDS = 0.1
"""To start and end worker processes: 0.07 s for two, 0.11 s for four, with a model of 40 MB on two busy cores."""


def sequential_batches(
    dataset: Any,
    recipe: object,
    size: int,
    device: torch.device,
    seed: int,
    *,
    workers: int = 0,
    memory_format: MemoryFormat | None = None,
    offset: int = 0,
    stride: int = 1,
) -> Generator[tuple[Any, int], None, None]:
    """Yield the whole dataset in its own order, as pairs of (batch of at most `size` on the device, its samples).

    The batches do not depend on `workers`, the number of processes that may prefetch: they are started only if fetching
    the remaining batches in this process, at the speed of the first one, would take longer than starting them. Close
    the generator if it is not exhausted. Only every `stride`th batch is yielded, from number `offset` on. Images
    get the `memory_format` on the device.
    """
    collate, randomness = evaluation_collate_function(recipe), SampleRandomness()
    starts = range(0, len(dataset), size)[offset::stride]
    requests: list[Request] = [(0, range(start, min(start + size, len(dataset)))) for start in starts]

    def fetch_here(request: Request) -> Any:
        epoch, indices = request
        return fetch(dataset, collate, indices, seed=seed, epoch=epoch, randomness=randomness)

    def move(batch: Any, request: Request, *, asynchronous: bool = False) -> tuple[Any, int]:
        return to_device(batch, device, memory_format, asynchronous=asynchronous), len(request[1])

    if not requests:
        return
    first, *remaining = requests
    started_at = time.monotonic()
    batch = fetch_here(first)
    seconds = time.monotonic() - started_at
    yield move(batch, first)
    if not workers or seconds * len(remaining) <= _START_SECONDS:
        yield from (move(fetch_here(request), request) for request in remaining)
        return
    count, pinned = min(workers, len(remaining)), device.type == "cuda"
    processes = Workers(
        dataset, collate, lambda update, _: [] if update else remaining, count=count, seed=seed, pinned=pinned
    )
    try:
        for batch, request in zip(processes.batches(0, size), remaining, strict=True):
            yield move(batch, request, asynchronous=True)
    finally:
        processes.close()
