"""What several screens are made of: a headline, a verdict, settings, bars, a grid."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from shoestring.answers.wording import model_text, notable_settings
from shoestring.base.streams import message_text, one_line
from shoestring.base.units import bytes_text
from shoestring.hardware.catalog import Target
from shoestring.planning.estimate.memory import MemoryPart
from shoestring.planning.trace.record import Facts

_BAR = 30
VERDICTS = {"fits": "bold green", "fits with changes": "bold yellow", "does not fit": "bold red"}


def headline(recipe: str, target: Target, facts: Facts) -> Text:
    """What is asked about: a recipe on a target."""
    device = f"{target.device.title}, {bytes_text(target.device.memory_bytes)}"
    return Text.assemble(
        (one_line(recipe), "bold"),
        " on ",
        (target.name, "bold"),
        f" ({device}) · {model_text(facts)}",
    )


def verdict(text: str) -> Text:
    """Whether it fits, in the color of that."""
    return Text(text, style=VERDICTS[text])


def settings_text(settings: Mapping[str, Any]) -> str:
    """Microbatch and precision, and what else decides memory where it is not the default."""
    pairs = notable_settings(settings)
    return " · ".join(str(value) if name == "precision" else f"{name} {value}" for name, value in pairs)


def add_notes(table: Table, notes: Sequence[str]) -> None:
    """Add a row with the notes, if there are any."""
    if notes:
        table.add_row("notes", Text("\n".join(map(message_text, notes))))


def memory_bars(parts: Sequence[MemoryPart]) -> RenderableType:
    """Return a bar for each part of a breakdown, in their order."""
    largest = max(part.bytes for part in parts)
    table = grid()
    for part in parts:
        table.add_row(one_line(part.name), Text(bytes_text(part.bytes), justify="right"), bar(part.bytes / largest))
    return table


def bar(share: float) -> Text:
    """A bar of at most `_BAR` cells in eighths of a cell."""
    eighths = max(1, round(share * _BAR * 8))
    return Text("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip(), style="cyan")


def grid() -> Table:
    """Columns side by side, without lines."""
    return Table.grid(padding=(0, 2))
