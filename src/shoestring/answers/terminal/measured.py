"""The measured rates of a device in a terminal."""

from rich.console import Group, RenderableType
from rich.text import Text

from shoestring.answers.terminal.elements import grid
from shoestring.base.streams import message_text, one_line
from shoestring.hardware.measured import MeasuredRates


def screen(measured: MeasuredRates) -> RenderableType:
    """Show the highest rates, the host's time, and how to use the file."""
    rows = grid()
    for name, rate in measured.summary().items():
        rows.add_row(name, rate)
    file = one_line(measured.file)
    return Group(
        Text(f"{one_line(measured.device.title)} was measured; the rates are in {file}", style="bold"),
        rows,
        *(Text(f"warning: {message_text(warning)}", style="bold yellow") for warning in measured.warnings),
        Text(f"plan with them: shoestring plan RECIPE --on {file}"),
    )
