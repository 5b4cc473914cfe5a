"""The memory estimate of specific settings in a terminal."""

from rich.console import Group, RenderableType
from rich.text import Text

from shoestring.plan.estimate import Estimate
from shoestring.report.terminal.elements import grid, headline, memory_bars, settings_text, verdict
from shoestring.report.wording import memory_text
from shoestring.streams import message_text
from shoestring.units import bytes_text


def screen(estimate: Estimate) -> RenderableType:
    """Show the verdict, the settings and the parts of the memory."""
    facts = grid()
    facts.add_row("settings", settings_text(estimate.settings.json()))
    facts.add_row("memory", memory_text(estimate.memory))
    facts.add_row("", memory_bars(sorted(estimate.memory.parts, key=lambda part: -part.bytes)))
    facts.add_row(
        "tensors by phase", " · ".join(f"{name} {bytes_text(size)}" for name, size in estimate.phases.items())
    )
    if estimate.facts.notes:
        facts.add_row("notes", Text("\n".join(map(message_text, estimate.facts.notes))))
    return Group(
        headline(estimate.recipe, estimate.target, estimate.facts),
        verdict("fits" if estimate.memory.fits else "does not fit"),
        facts,
    )
