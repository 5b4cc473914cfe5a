"""The number of multiprocessors of GPUs, by which libraries choose the sizes of launches and some workspaces."""

from collections.abc import Mapping

from shoestring.hardware.catalog import Device

MULTIPROCESSORS: Mapping[str, int] = {
    "t4": 40,
    "p100": 56,
    "v100": 80,
    "l4": 58,
    "a10": 72,
    "a100-40": 108,
    "a100-80": 108,
    "h100": 132,
    "h200": 132,
    "rtxpro6000": 188,
    "rtx3060": 28,
    "rtx3090": 82,
    "rtx4060": 24,
    "rtx4090": 128,
}
"""By the name in the catalogue. From NVIDIA's architecture whitepapers: Turing (TU104 as T4), Pascal (GP100), Volta
(GV100), Ada (AD104, AD107, AD102), Ampere (GA100, GA102, GA106), Hopper (GH100 as SXM), Blackwell (GB202). On a device
that is not listed, that of a T4 is assumed."""


def multiprocessors(device: Device) -> int:
    """Return the number of multiprocessors of a device."""
    return MULTIPROCESSORS.get(device.name, MULTIPROCESSORS["t4"])
