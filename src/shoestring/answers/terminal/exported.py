"""An exported folder in a terminal."""

from rich.console import Group, RenderableType
from rich.text import Text

from shoestring.base.streams import message_text, one_line
from shoestring.base.units import bytes_text, count_text
from shoestring.runs.export.export import Export


def screen(export: Export) -> RenderableType:
    """Show the folder, its files, the difference from the model, and notes on the model."""
    update = "" if export.update is None else f" of update {count_text(export.update)}"
    lines = [
        Text(one_line(f"{export.recipe}: the weights{update} as {export.format}: {export.path}"), style="bold"),
        Text(one_line(f"{bytes_text(export.bytes)}: {', '.join(export.files)}")),
        Text(f"largest difference of an output from the model's: {export.max_difference:.3g}"),
    ]
    return Group(*lines, *(Text(message_text(note), style="yellow") for note in export.notes))
