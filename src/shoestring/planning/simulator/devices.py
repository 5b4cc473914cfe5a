"""What a script can ask a GPU beyond what the catalogue has: the name that its driver reports, its multiprocessors."""

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
(GV100), Ada (AD104, AD107, AD102), Ampere (GA100, GA102, GA106), Hopper (GH100 as SXM), Blackwell (GB202). Libraries
choose the sizes of launches and some workspaces by it; on a device that is not listed, that of a T4 is assumed."""


def driver_name(device: Device) -> str:
    """Return the name that the driver reports for a device of the catalogue, such as `Tesla T4`."""
    name = device.nvml_names[0] if device.nvml_names else device.title
    return name if name.startswith(("NVIDIA", "Tesla")) else f"NVIDIA {name}"


def multiprocessors(device: Device) -> int:
    """Return the number of multiprocessors of a device."""
    return MULTIPROCESSORS.get(device.name, MULTIPROCESSORS["t4"])
