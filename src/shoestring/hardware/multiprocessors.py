"""The number of multiprocessors of GPUs, by which libraries choose the sizes of launches and some workspaces."""

from shoestring.hardware.catalog import Device

_UNKNOWN = 40  # those of a T4


def multiprocessors(device: Device) -> int:
    """Return the number of multiprocessors of a device; that of a T4 if it is unknown."""
    return device.multiprocessors or _UNKNOWN
