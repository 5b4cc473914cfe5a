"""The memory estimate of specific settings in a terminal."""

from rich.console import Group, RenderableType
from rich.text import Text

from shoestring.answers.terminal.elements import add_notes, grid, headline, memory_bars, settings_text, verdict
from shoestring.answers.wording import memory_text
from shoestring.base.units import bytes_text
from shoestring.planning.estimation import Estimate


def _verdict(estimate: Estimate) -> Text:
    memory = estimate.memory
    if memory.fits:
        return verdict("fits")
    text = verdict("does not fit")
    if memory.loading_bytes > memory.capacity_bytes:
        text.append(": the model does not fit while it is loaded", style="default")
        return text
    if memory.peak_bytes <= memory.capacity_bytes:  # otherwise the numbers say it themselves
        text.append(": the high end of the range decides; shoestring plan finds settings that fit", style="default")
    return text


def screen(estimate: Estimate) -> RenderableType:
    """Show the verdict, the settings and the parts of the memory."""
    facts = grid()
    facts.add_row("settings", settings_text(estimate.settings.json()))
    facts.add_row("memory", memory_text(estimate.memory))
    facts.add_row("", memory_bars(sorted(estimate.memory.parts, key=lambda part: -part.bytes)))
    facts.add_row(
        "tensors by phase", " · ".join(f"{name} {bytes_text(size)}" for name, size in estimate.phases.items())
    )
    add_notes(facts, estimate.facts.notes)
    return Group(
        headline(estimate.recipe, estimate.target, estimate.facts),
        _verdict(estimate),
        facts,
    )
