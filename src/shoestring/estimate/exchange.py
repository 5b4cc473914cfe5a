"""Seconds that gradients need between GPUs, and what of them training waits for."""

from __future__ import annotations

from dataclasses import dataclass

from shoestring.units import GIB, MIB


@dataclass(frozen=True, kw_only=True)
class Link:
    """What lies between the GPUs of one machine."""

    name: str
    bandwidth: float
    """Bytes/s that each GPU sends in an all-reduce and receives at the same time (NCCL's bus bandwidth)."""
    latency: float
    """Seconds of an all-reduce of nothing."""
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
"""The first is what is taken; the second bounds it from a measurement of another kind."""

_LAST_BUCKET = 25 * MIB
"""Of DistributedDataParallel: what becomes ready last has no backward left to hide behind."""


def exchange_seconds(size: float, gpus: int, link: Link = LINKS[0]) -> float:
    """Seconds of an all-reduce of `size` bytes among `gpus` in a ring, nothing beside it; 0 for one GPU."""
    if gpus < 2:
        return 0.0
    return link.latency + 2 * (gpus - 1) / gpus * size / link.bandwidth


def exposed_seconds(size: float, gpus: int, link: Link, backward: float) -> float:
    """What training waits for of an all-reduce in buckets that runs beside `backward` seconds of the last microbatch:
    what is left when backward ends, at least the last bucket."""
    whole = exchange_seconds(size, gpus, link)
    return max(whole - backward, exchange_seconds(min(size, _LAST_BUCKET), gpus, link))
