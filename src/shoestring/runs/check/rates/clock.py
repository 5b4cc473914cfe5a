"""Time calls on a device: repeated until a sample is long enough to be measured, one sample of each call in a round.

Samples of one call are so distributed over the whole measurement: what else the machine does for a second disturbs one
sample of many calls rather than all samples of one.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from shoestring.hardware.measured import Timing

_SHORTEST = 1e-9
"""The least seconds of a call: a clock that shows none has not advanced."""


def wait(device: torch.device) -> None:
    """Wait until the device has run all that was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def sample(call: Callable[[], Any], repeats: int, device: torch.device) -> float:
    """Return the mean seconds of one of `repeats` consecutive calls."""
    wait(device)
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    wait(device)
    return max(_SHORTEST, (time.perf_counter() - start) / repeats)


def repeats_for(call: Callable[[], Any], seconds: float, device: torch.device) -> int:
    """Return how often to call for a sample of at least so many seconds; the first calls are a warm-up."""
    call()
    repeats = 1
    while (duration := sample(call, repeats, device) * repeats) < seconds / 4:
        repeats *= 4
    return max(1, math.ceil(seconds / duration * repeats))


def summarize(samples: Sequence[float]) -> Timing:
    """Return the median, the fastest and the slowest."""
    return Timing(seconds=statistics.median(samples), low=min(samples), high=max(samples))
