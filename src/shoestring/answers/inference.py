"""The plan of predictions: their memory and their speed."""

from shoestring.answers import wording
from shoestring.answers.document import Document, Fact, KeyFigure, Paragraph, Status
from shoestring.base.units import bytes_text
from shoestring.planning.inference import InferencePlan


def document(plan: InferencePlan) -> Document:
    """Return the verdict, the settings, the memory by parts and the speed."""
    speed, settings, memory = _speed(plan), plan.settings, plan.memory
    peak = KeyFigure("peak memory", bytes_text(memory.peak_bytes), f"of {bytes_text(memory.capacity_bytes)}")
    return Document(
        title=f"{plan.recipe} on {plan.target.name}, predictions",
        status=plan.verdict,
        subtitle=wording.device_text(plan.target, plan.facts),
        sentences=[wording.heading(plan.recipe, plan.target, plan.facts), Status(plan.verdict)],
        content=[
            Fact("predicts with", [wording.settings(settings.json())]),
            wording.memory(memory, figure=peak),
            Fact("speed", [Paragraph(speed, figure=KeyFigure("speed", *speed.split(": ", 1)))]),
            *wording.notes(plan.facts.notes),
        ],
    )


def _speed(plan: InferencePlan) -> str:
    """Return the inputs per second, or why they are not known."""
    rate = plan.inputs_per_second
    if rate is None:
        return "not predicted: not all of the work is simulated, or the rates of the device are not known"
    return f"{rate:,.0f} inputs a second" if rate >= 10 else f"{rate:.2g} inputs a second"
