"""What a script can ask a GPU beyond what the catalogue has: the name that its driver reports."""

from shoestring.hardware.catalog import Device


def driver_name(device: Device) -> str:
    """Return the name that the driver reports for a device of the catalogue, such as `Tesla T4`."""
    name = device.nvml_names[0] if device.nvml_names else device.title
    return name if name.startswith(("NVIDIA", "Tesla")) else f"NVIDIA {name}"
