"""Seconds of the gradients' all-reduce between GPUs, in total and not hidden by backward."""

from __future__ import annotations

from dataclasses import dataclass

from shoestring.units import GIB, MIB


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

_LAST_BUCKET = 25 * MIB
"""The size of DistributedDataParallel's last bucket, which becomes ready when backward ends and cannot overlap it."""


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
    return max(total - backward, exchange_seconds(min(size, _LAST_BUCKET), gpus, link))
