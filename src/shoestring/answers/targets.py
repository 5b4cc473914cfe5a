"""The available targets."""

from collections.abc import Iterator, Sequence

from shoestring.answers.document import Column, Document, Element, Fact, Labels, Paragraph, Table
from shoestring.base.units import bytes_text
from shoestring.hardware.catalog import Target
from shoestring.hardware.description import EXAMPLE

_COLUMNS = ("device", "memory", "precisions", "session limit", "weekly quota", "disk")


def document(targets: Sequence[Target]) -> Document:
    """Return a row for each machine, and the GPUs without a platform by their family."""
    machines = [target for target in targets if target.platform or target.gpus != 1]
    names = ", ".join(target.name for target in machines if target.depends_on_account)
    return Document(
        title="Targets",
        sentences=[],
        content=[
            Table([Column("target", can_wrap=False), *map(Column, _COLUMNS)], list(map(_row, machines))),
            *([Paragraph(f"Only some accounts get {names}.")] if names else []),
            *_families([target for target in targets if target not in machines]),
            Paragraph(
                "Several cards are called by their number, such as rtx3090x2, and any other GPU by its numbers: --on "
                f'"{EXAMPLE}".'
            ),
        ],
    )


def _row(target: Target) -> tuple[str, ...]:
    platform = target.platform
    return (
        target.name,
        f"{target.gpus} x {target.device.title}" if target.gpus > 1 else target.device.title,
        bytes_text(target.device.memory_bytes),
        " ".join(target.device.precisions),
        f"{platform.session_hours:g} h" if platform and platform.session_hours else "–",
        f"{platform.weekly_gpu_hours:g} h" if platform and platform.weekly_gpu_hours else "–",
        bytes_text(platform.disk_bytes) if platform and platform.disk_bytes else "–",
    )


def _families(targets: Sequence[Target]) -> Iterator[Element]:
    """Yield the names of each family's GPUs with their memory."""
    for family in dict.fromkeys(target.device.family for target in targets):
        members = [target for target in targets if target.device.family == family]
        yield Fact(family, [Labels([(target.name, bytes_text(target.device.memory_bytes)) for target in members])])
