"""Seconds in which GPUs exchange gradients and weights, and what of them is not hidden by computation."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoestring.base.units import GIB, MIB
from shoestring.hardware.catalog import Device


@dataclass(frozen=True, kw_only=True)
class Link:
    """The interconnect between the GPUs of one machine."""

    name: str
    bandwidth: float
    """Bytes/s that each GPU sends and, at the same time, receives in an all-reduce (NCCL's bus bandwidth)."""
    latency: float
    """Seconds of an all-reduce of zero bytes."""
    source: str
    slowest: float = 1.0
    """The share of `bandwidth` that the high end of a range assumes."""
    hides_gathers: bool = True
    """Whether GPUs compute while FSDP2 gathers weights, in an expected time. The low end of a range assumes that every
    exchange is hidden so, the high end that none is."""


LINKS = (
    Link(
        name="T4s on PCIe, Kaggle",
        bandwidth=3.67 * GIB,
        latency=0.14e-3,
        source="Shakhtar-Sankur/tandem: NCCL's all-reduce on two T4s, 0.41 ms for 1 MiB, 17.07 ms for 64 MiB",
        hides_gathers=False,
    ),
    Link(
        name="T4s on PCIe, accelerate's",
        bandwidth=4.5 * GIB,
        latency=0.14e-3,
        source="huggingface/accelerate, gradient_synchronization.md: 90 ms less for a BERT's gradients not sent",
        hides_gathers=False,
    ),
)
"""Of T4s. The first is used by default; the second is a bound from a different kind of measurement. The rate is that of
copies through host memory. DistributedDataParallel hides its exchange on T4s: AdaptDL's and tandem's updates are
predicted so (`benchmarks/time/score.py`)."""

_NVLINK: Mapping[str, tuple[float, str]] = {
    name: link
    for names, link in (
        (
            ("v100", "v100-32"),
            (40e9, "two of its six links of 25 GB/s between two V100s of a DGX-1, at an A100's 78% of the link"),
        ),
        (("a100-40", "a100-80"), (235e9, "8 A100s, NVLink 3: 234.89 GB/s")),
        (("h100", "h200", "gh200-96", "gh200-144"), (368e9, "8 H200s, NVLink 4, ring: 367.61 GB/s")),
        (("b100", "b200", "b300"), (747e9, "B200s, NVLink 5, copies between two of them: 747 GB/s")),
    )
    for name in names
}
"""NCCL's bus bandwidth of large all-reduces over NVLink, by device, from stas00/ml-engineering at 744d01e,
`network/README.md`. A V100's is an assumption: its pairs have one link, two or none."""

_LANE_BYTES = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes/s of one PCIe lane in each direction, by generation, as specified."""

_DIRECT_SHARE = 0.7
"""The share of the link's bytes/s that NCCL's bus bandwidth reaches where GPUs access each other's memory over PCIe:
between 20 of 31.5 GB/s for three A100s (NVIDIA/nccl-tests#178) and 24.7 for five RTX 4090s with a modified driver
(tinygrad/open-gpu-kernel-modules#17)."""

_STAGED_SHARE = 1 / 3
"""The share where they cannot, and their data passes through host memory. For PCIe 4.0 x16: copies between RTX 4090s
at 10.5 to 15 GB/s in each direction (NVIDIA/nccl#814), between A40s at 10 (NVIDIA/nccl-tests#74); for PCIe 5.0 x16: 28
GB/s among eight RTX 5090s and 35 among four (NVIDIA/nccl#1639); for PCIe 3.0 x16: the two T4s of `LINKS`. Of the shares
0.25, 0.31, 0.32, 0.33, 0.44, 0.48 and 0.56 this is the median."""

_OTHER_LANES = 1 / 4
"""What the slot of a GPU may have of its lanes, for the high end of a range: boards for GeForce cards often have the
second slot with half of the lanes, and older ones with the generation before. An assumption."""

_SHORT_LATENCY = 0.04e-3
"""Seconds of a small all-reduce: 42 us among RTX 4090s (NVIDIA/nccl#1530), 40 among H200s (stas00/ml-engineering)."""


def link_of(device: Device, without: str | None = None) -> Link:
    """Return the link between GPUs of this kind in one machine; measurements of sources with `without` are excluded.

    Where GPUs have no access to each other's memory, NCCL copies through host memory, with kernels that wait for room
    beside those of the computation. The gathers of FSDP are then taken to add to the time of computation, since each
    layer waits for its weights, which are requested only one layer ahead: its steps on two RTX 3090s take as long as
    both together, and on two RTX 4090s between that and the longer of both (AnswerDotAI/fsdp_qlora,
    `benchmarks_03_2024.md`). Nothing waits for the gradients of DistributedDataParallel before backward ends, and T4s,
    which exchange at the rate of host memory too, hide them (`LINKS`). What is not known of a GPU counts as missing.
    """
    if device.name == "t4":
        return next(link for link in LINKS if not without or without not in link.source)
    if device.name in _NVLINK:
        bandwidth, source = _NVLINK[device.name]
        return Link(name="NVLink", bandwidth=bandwidth, latency=_SHORT_LATENCY, source=source)
    text, specified = pcie_bandwidth(device)
    staged = not device.peer_access
    share = _STAGED_SHARE if staged else _DIRECT_SHARE
    return Link(
        name=f"PCIe {text}" + (", through host memory" if staged else ""),
        bandwidth=share * specified,
        latency=_SHORT_LATENCY,
        source=f"{share:.0%} of PCIe {text}, as others measured of NCCL",
        slowest=_OTHER_LANES if staged else 0.5,
        hides_gathers=not staged,
    )


def pcie_bandwidth(device: Device) -> tuple[str, float]:
    """Return generation and lanes of the device's PCIe bus, those of most such GPUs if unknown, and its specified
    bytes/s in each direction.
    """
    text = device.pcie or _usual_pcie(device)
    match = re.match(r"(\d)\.\d x(\d+)", text)
    generation, lanes = (int(match[1]), int(match[2])) if match else (3, 16)
    return text, lanes * _LANE_BYTES[generation]


def _usual_pcie(device: Device) -> str:
    """Return the link of most GPUs of a generation, for a device of which it is not known."""
    capability = device.compute_capability or (0, 0)
    return "5.0 x16" if capability >= (10, 0) else "4.0 x16" if capability >= (8, 0) else "3.0 x16"


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

    `backward` seconds of it can; the last bucket never overlaps it.
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

    It gathers all weights `gathers` times and reduces all gradients. `compute` seconds of computation can overlap that,
    but not the first weights and the last gradients.
    """
    # An all-reduce is a reduce-scatter and an all-gather.
    total = (gathers * exchange_seconds(weights, gpus, link) + exchange_seconds(gradients, gpus, link)) / 2
    return max(total - compute, exchange_seconds(min(gradients, _BUCKET), gpus, link))
