"""The available targets."""

from collections.abc import Sequence

from shoestring.answers.document import Column, Document, Paragraph, Table
from shoestring.base.units import bytes_text
from shoestring.hardware.catalog import Target

_COLUMNS = ("device", "memory", "precisions", "session limit", "weekly quota", "disk")


def document(targets: Sequence[Target]) -> Document:
    """Return a row for each target."""
    rows = []
    for target in targets:
        platform = target.platform
        rows.append(
            (
                target.name,
                f"{target.gpus} x {target.device.title}" if target.gpus > 1 else target.device.title,
                bytes_text(target.device.memory_bytes),
                " ".join(target.device.precisions),
                f"{platform.session_hours:g} h" if platform and platform.session_hours else "–",
                f"{platform.weekly_gpu_hours:g} h" if platform and platform.weekly_gpu_hours else "–",
                bytes_text(platform.disk_bytes) if platform and platform.disk_bytes else "–",
            )
        )
    names = ", ".join(target.name for target in targets if target.depends_on_account)
    return Document(
        title="Targets",
        sentences=[],
        content=[
            Table([Column("target", can_wrap=False), *map(Column, _COLUMNS)], rows),
            *([Paragraph(f"Only some accounts get {names}.")] if names else []),
        ],
    )
