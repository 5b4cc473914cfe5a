"""The bytes/s of copies from host memory, or from a disk, to a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from shoestring.hardware.catalog import Device
from shoestring.hardware.measured import PAGEABLE, PINNED, TOGETHER, CopyTiming
from shoestring.planning.estimate.exchange import pcie_bandwidth

Source = Literal["host", "disk"]


@dataclass(frozen=True, kw_only=True)
class HostLink:
    """The way from host memory to a GPU."""

    bandwidth: float
    """Bytes/s of copies from pinned memory, while nothing else copies."""
    fastest: float
    """The multiple of `bandwidth` that the low end of a range assumes."""
    slowest: float
    """The share of `bandwidth` that the high end assumes."""
    pageable: float
    """The share of `bandwidth` of copies from memory that is not pinned, such as a file that is mapped."""
    together: float
    """The share of `bandwidth` that each GPU of a machine has in an expected time if all copy at once."""
    latency: float
    """Seconds from the end of a copy to the beginning of the next."""
    source: str


_PINNED_SHARE = 0.77
"""The share of a PCIe bus's specified bytes/s that copies from pinned memory reach: 12.15 of 15.8 GB/s for a P100
(mpicbg-scicomp/gearshifft#82), 13.1 and 11.3 for an RTX 2080 Ti (usadellab/Helixer#22, lvyufeng/PocketLLM#253), 23.9 of
31.5 GB/s for an RTX 4090 (NVlabs/cuda-oxide#976). Of the shares 0.72, 0.76, 0.77 and 0.83 this is the third; a T4 in a
notebook has 12.4 GB/s, 0.79."""

_PAGEABLE_SHARE = 0.55
"""The same RTX 4090 copies large buffers from memory that is not pinned at 12.9 GB/s, 0.54 of 23.9, smaller ones at
18.4; a driver copies such memory to buffers of its own first."""

_FASTEST = 1.08
"""The largest share above, 0.83."""

_SLOWEST = 0.5
"""A slot or a virtual machine with half of the lanes: a T4 on EC2 has 6.3 GB/s. With memory of another processor's it
may be a third (3.8 GB/s in mpicbg-scicomp/gearshifft#82)."""

_LATENCY = 20e-6
"""An assumption: a copy of a few bytes takes 10 to 20 us."""

_COHERENT = dict.fromkeys(
    ("gh200-96", "gh200-144"), (104e9, "97 GiB/s from pinned memory on a GH200 (vortex-data/vortex#7815)")
)
"""GPUs that reach host memory over NVLink."""

_DISK_RATES = (1e9, 200e6, 50e6)
"""An assumption, that of `planning/job.py`: bytes/s of a fast local disk, of an expected one, and of a slow network
disk. Pages that the host has cached come faster."""


def host_link_of(device: Device) -> HostLink:
    """Return the link of a GPU: as `check --measure` has measured it, or by its PCIe bus."""
    copies = device.measured.copies if device.measured else ()
    if device.measured and (pinned := _largest_rate(copies, PINNED)):
        pageable, together = (_largest_rate(copies, kind) for kind in (PAGEABLE, TOGETHER))
        return HostLink(
            bandwidth=pinned,
            fastest=1.0,
            slowest=1.0,
            pageable=min(1.0, pageable / pinned) if pageable else _PAGEABLE_SHARE,
            together=min(1.0, together / pinned) if together else 1.0,
            latency=_LATENCY,
            source=device.measured.source,
        )
    text, specified = pcie_bandwidth(device)
    bandwidth, source = _COHERENT.get(
        device.name, (_PINNED_SHARE * specified, f"{_PINNED_SHARE:.0%} of PCIe {text}, as others measured")
    )
    return HostLink(
        bandwidth=bandwidth,
        fastest=_FASTEST,
        slowest=_SLOWEST,
        pageable=_PAGEABLE_SHARE,
        together=1.0,
        latency=_LATENCY,
        source=source,
    )


def copy_rates(link: HostLink, source: Source, gpus: int) -> tuple[float, float, float]:
    """Return the bytes/s at which each of `gpus` copies from its own host memory or file: high, expected, low.

    GPUs have a bus each and share the memory of the host, which has some times the bandwidth of a bus. So in the high
    and the expected case each is served as if it were alone, unless that was measured; in the low case all share one
    bus. A disk is shared by all in each case.
    """
    together, shared = (link.together, 1 / gpus) if gpus > 1 else (1.0, 1.0)
    pinned = (
        link.bandwidth * link.fastest * together,
        link.bandwidth * together,
        link.bandwidth * min(link.slowest * shared, together),
    )
    if source == "host":
        return pinned
    high, expected, low = (
        min(rate * link.pageable, disk / gpus) for rate, disk in zip(pinned, _DISK_RATES, strict=True)
    )
    return high, expected, low


def _largest_rate(copies: Iterable[CopyTiming], kind: str) -> float | None:
    rows = [row for row in copies if row.kind == kind]
    largest = max(rows, key=lambda row: row.bytes, default=None)
    return largest.bytes / largest.seconds if largest else None
