"""Seconds in which GPUs exchange gradients and weights, and what of them is not hidden by computation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shoestring.base.units import GIB, MIB


@dataclass(frozen=True, kw_only=True)
class Link:
    """The interconnect between the GPUs of one machine."""

    name: str
    bandwidth: float
    """Bytes/s that each GPU sends and, at the same time, receives in an all-reduce (NCCL's bus bandwidth)."""
    latency: float
    """Seconds of an all-reduce of zero bytes."""
    source: str


LINKS = (
    Link(
        name="T4s on PCIe, Kaggle",
        bandwidth=3.67 * GIB,
        latency=0.14e-3,
        source="Shakhtar-Sankur/tandem: NCCL's all-reduce on two T4s, 0.41 ms for 1 MiB, 17.07 ms for 64 MiB",
    ),
    Link(
        name="T4s on PCIe, accelerate's",
        bandwidth=4.5 * GIB,
        latency=0.14e-3,
        source="huggingface/accelerate, gradient_synchronization.md: 90 ms less for a BERT's gradients not sent",
    ),
)
"""The first is used by default; the second is a bound from a different kind of measurement."""

_BUCKET = 25 * MIB
"""The size of a message of the engine (`training/engine/parallel/buckets.py`), and of DistributedDataParallel's last
bucket, which becomes ready when backward ends and cannot overlap it."""

GATHERS = {"zero2": 1, "zero3": 2}
"""How often FSDP2 gathers all weights in a microbatch: once, or again for backward."""


def exchange_seconds(size: float, gpus: int, link: Link = LINKS[0]) -> float:
    """Return the seconds of an all-reduce of `size` bytes among `gpus` in a ring, without overlap; 0 for one GPU."""
    if gpus < 2:
        return 0.0
    return link.latency + 2 * (gpus - 1) / gpus * size / link.bandwidth


def exposed_seconds(size: float, gpus: int, link: Link, backward: float) -> float:
    """Return the seconds of an all-reduce in buckets that do not overlap backward of the last microbatch.

    Backward takes `backward` seconds; the last bucket never overlaps it.
    """
    total = exchange_seconds(size, gpus, link)
    return max(total - backward, exchange_seconds(min(size, _BUCKET), gpus, link))


def replica_seconds(
    size: float, gpus: int, link: Link, *, sends_weights: bool, final: Sequence[tuple[float, float]] = ()
) -> float:
    """Return the seconds after backward in which the engine adds `size` bytes of gradients of all GPUs.

    Pairs of GPUs add them at each level of a tree, in messages of the size of a bucket. `final` tells for gradients, in
    the order in which the last backward computes them, how many seconds before its end they are final, and their bytes:
    a message is sent as soon as its gradients are final and the one before has been sent. All others are sent after
    backward. With `sends_weights` (zero1) all updated weights are then sent from the GPUs that have updated them.
    """
    levels = (gpus - 1).bit_length()
    end, pending, known = -math.inf, 0.0, 0.0
    for remaining, part in final:
        part = min(part, size - known)
        pending, known = pending + part, known + part
        if pending >= _BUCKET:
            end, pending = max(end, -remaining) + levels * _message_seconds(pending, link), 0.0
    end = max(end, 0.0) + levels * _message_seconds(pending + size - known, link)
    return end + sends_weights * _message_seconds(size, link)


def _message_seconds(size: float, link: Link) -> float:
    """Return the seconds to send so many bytes between two GPUs, in messages of the size of a bucket."""
    return math.ceil(size / _BUCKET) * link.latency + size / link.bandwidth


def sharded_seconds(weights: float, gradients: float, gathers: int, gpus: int, link: Link, compute: float) -> float:
    """Return the seconds of a microbatch in which FSDP2 exchanges and does not compute.

    It gathers all weights `gathers` times and reduces all gradients, while it computes for `compute` seconds; the first
    weights and the last gradients cannot overlap that.
    """
    # An all-reduce is a reduce-scatter and an all-gather.
    total = (gathers * exchange_seconds(weights, gpus, link) + exchange_seconds(gradients, gpus, link)) / 2
    return max(total - compute, exchange_seconds(min(gradients, _BUCKET), gpus, link))
