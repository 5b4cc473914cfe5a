"""The displays of an estimate and of a plan of predictions: the memory of settings, and the speed."""

from shoestring.answers.markup import Markup
from shoestring.answers.notebook.layout import box, folded, labels, section, tiles
from shoestring.answers.notebook.memory import memory
from shoestring.answers.values import words
from shoestring.answers.wording import device_text, notable_settings
from shoestring.base import display
from shoestring.base.settings import Settings
from shoestring.base.units import bytes_text
from shoestring.planning.estimation import Estimate
from shoestring.planning.inference import InferencePlan


@display.html.register
def render_estimate(estimate: Estimate) -> Markup:
    """Render the parts of the memory estimated for specific settings."""
    return box(
        f"{estimate.recipe} on {estimate.target.name}",
        "fits" if estimate.memory.fits else "does not fit",
        device_text(estimate.target, estimate.facts),
        memory(estimate.memory),
        _settings(estimate.settings),
        section("Tensors by phase", labels((name, bytes_text(size)) for name, size in estimate.phases.items())),
        folded("Notes", estimate.facts.notes),
    )


@display.html.register
def render_inference(plan: InferencePlan) -> Markup:
    """Render the batch, the memory and the speed of predictions."""
    rate = plan.inputs_per_second
    speed = "unknown" if rate is None else f"{rate:,.3g} inputs a second"
    return box(
        f"{plan.recipe} on {plan.target.name}, predictions",
        plan.verdict,
        device_text(plan.target, plan.facts),
        tiles(
            [
                ("speed", speed, ""),
                ("inputs at once", str(plan.settings.micro_batch), str(plan.settings.precision)),
                ("peak memory", bytes_text(plan.memory.peak_bytes), f"of {bytes_text(plan.memory.capacity_bytes)}"),
            ]
        ),
        memory(plan.memory),
        _settings(plan.settings),
        folded("Notes", plan.facts.notes),
    )


def _settings(settings: Settings) -> Markup:
    return section("Settings", labels((words(name), str(value)) for name, value in notable_settings(settings.json())))
