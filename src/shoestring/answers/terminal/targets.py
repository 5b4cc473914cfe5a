"""The available targets in a terminal."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shoestring.base.units import bytes_text
from shoestring.hardware.catalog import Target


def screen(targets: Sequence[Target]) -> RenderableType:
    """Show a row for each target."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("target", "device", "memory", "precisions", "session limit", "weekly quota", "disk"):
        table.add_column(name, no_wrap=name == "target")
    for target in targets:
        platform = target.platform
        table.add_row(
            target.name,
            f"{target.gpus} x {target.device.title}" if target.gpus > 1 else target.device.title,
            bytes_text(target.device.memory_bytes),
            " ".join(target.device.precisions),
            f"{platform.session_hours:g} h" if platform and platform.session_hours else "–",
            f"{platform.weekly_gpu_hours:g} h" if platform and platform.weekly_gpu_hours else "–",
            bytes_text(platform.disk_bytes) if platform and platform.disk_bytes else "–",
        )
    names = ", ".join(target.name for target in targets if target.depends_on_account)
    return Group(table, Text(f"Only some accounts get {names}.")) if names else table
