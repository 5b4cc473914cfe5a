"""The plan of predictions in a terminal."""

from rich.console import Group, RenderableType

from shoestring.plan.inference import InferencePlan
from shoestring.report.terminal.elements import grid, headline, memory_bars, settings_text, verdict
from shoestring.report.wording import memory_text


def screen(plan: InferencePlan) -> RenderableType:
    """Show the verdict, the settings, the memory by parts and the speed."""
    facts = grid()
    facts.add_row("predicts with", settings_text(plan.settings.json()))
    facts.add_row("memory", memory_text(plan.memory))
    facts.add_row("", memory_bars(sorted(plan.memory.parts, key=lambda part: -part.bytes)))
    rate = "not predicted" if plan.inputs_per_second is None else f"{plan.inputs_per_second:,.3g} inputs a second"
    facts.add_row("speed", rate)
    return Group(headline(plan.recipe, plan.target, plan.facts), verdict(plan.verdict), facts)
