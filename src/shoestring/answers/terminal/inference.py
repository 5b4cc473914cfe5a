"""The plan of predictions in a terminal."""

from rich.console import Group, RenderableType

from shoestring.answers.terminal.elements import add_notes, grid, headline, memory_bars, settings_text, verdict
from shoestring.answers.wording import memory_text
from shoestring.planning.inference import InferencePlan


def speed_text(plan: InferencePlan) -> str:
    """Return the inputs per second, or why they are not known."""
    rate = plan.inputs_per_second
    if rate is None:
        return "not predicted: not all of the work is simulated, or the rates of the device are not known"
    return f"{rate:,.0f} inputs a second" if rate >= 10 else f"{rate:.2g} inputs a second"


def screen(plan: InferencePlan) -> RenderableType:
    """Show the verdict, the settings, the memory by parts and the speed."""
    facts = grid()
    facts.add_row("predicts with", settings_text(plan.settings.json()))
    facts.add_row("memory", memory_text(plan.memory))
    facts.add_row("", memory_bars(sorted(plan.memory.parts, key=lambda part: -part.bytes)))
    facts.add_row("speed", speed_text(plan))
    add_notes(facts, plan.facts.notes)
    return Group(headline(plan.recipe, plan.target, plan.facts), verdict(plan.verdict), facts)
