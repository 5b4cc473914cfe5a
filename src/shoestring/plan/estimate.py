"""The memory of given settings on one GPU of a target."""

from dataclasses import dataclass
from typing import Any

from shoestring.estimate.memory import Breakdown
from shoestring.hardware.catalog import Target
from shoestring.plan.search import candidate
from shoestring.recipe import LoadedRecipe
from shoestring.settings import Settings
from shoestring.trace import Tracer
from shoestring.trace.record import Facts


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A breakdown and what it is of."""

    recipe: str
    target: Target
    settings: Settings
    facts: Facts
    memory: Breakdown

    @property
    def peak_bytes(self) -> int:
        """The predicted peak of the device's memory in bytes; the parts sum to it."""
        return self.memory.peak_bytes

    def json(self) -> dict[str, Any]:
        """The estimate as JSON; bytes are integers."""
        return {
            "target": self.target.name,
            "settings": self.settings.json(),
            "parameters": {"total": self.facts.parameters_total, "trainable": self.facts.parameters_trainable},
            **self.memory.json(),
        }


def make_estimate(loaded: LoadedRecipe, target: Target, wanted: Settings) -> Estimate:
    """Trace one update of `loaded` under `wanted`; an open microbatch is the effective batch, an open precision fp32.

    Raises TraceError when a training step of the model cannot be followed.
    """
    settings = wanted.replace(
        micro_batch=wanted.micro_batch or loaded.effective_batch, precision=wanted.precision or "fp32"
    )
    if wanted.micro_batch and wanted.micro_batch > loaded.effective_batch:
        loaded = loaded.replace(effective_batch=wanted.micro_batch)
    with Tracer(loaded) as tracer:
        found = candidate(tracer, loaded, target, settings)
        facts = tracer.facts
    return Estimate(recipe=loaded.name, target=target, settings=settings, facts=facts, memory=found.memory)
