"""How the work of a sample depends on its length: attention grows faster, the encoder of an image not at all.

Two short traces, of the largest length and of a typical one, tell the work between them.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoestring.base.errors import ShoestringError
from shoestring.base.settings import Settings
from shoestring.hardware.catalog import Device
from shoestring.planning.estimate.kernels import kernel_seconds
from shoestring.planning.estimate.measured_rates import rates_of
from shoestring.planning.trace import Tracer
from shoestring.planning.trace.record import Op, Phase, Trace
from shoestring.recipe.options import LoadedRecipe

_TRACED_SAMPLES = 2
_LARGEST_MODEL = 2 << 30
"""Bytes of weights up to which a plan traces twice more; a larger model is nearly all products with its weights, whose
work is in proportion to the length."""
_SIMILAR = 0.9
"""The share of the greatest length from which on a typical one is not traced."""


@dataclass(frozen=True)
class LengthWork:
    """The work of samples by their length, as a line; lengths and work are shares of those of the greatest length."""

    fixed: float = 0.0
    """The work that does not depend on the length; negative if the work grows faster than the length."""
    slope: float = 1.0

    def share(self, length: float) -> float:
        """Return the work of a sample of this length; that of the shortest is not less than half in proportion."""
        return min(1.0, max(self.fixed + self.slope * length, length / 2))


PROPORTIONAL = LengthWork()


def find_length_work(tracer: Tracer, loaded: LoadedRecipe, device: Device) -> LengthWork:
    """Return how the work of the recipe's samples depends on their length, in proportion if that cannot be traced."""
    parts, facts, rates = loaded.parts, tracer.facts, rates_of(device)
    if not parts.data.length_option or not parts.data.capacity or not facts.sample_lengths or rates is None:
        return PROPORTIONAL
    typical = round(sum(facts.sample_lengths) / len(facts.sample_lengths))
    if typical > _SIMILAR * parts.data.capacity or facts.weight_bytes > _LARGEST_MODEL:
        return PROPORTIONAL
    settings = Settings(
        micro_batch=min(_TRACED_SAMPLES, loaded.effective_batch),
        precision=device.precisions[-1],
        checkpointing="no",
    )

    def kernels(length: int) -> float:
        trace = tracer.trace(settings, accumulate=1, device=device, options={str(parts.data.length_option): length})
        return sum(kernel_seconds(event, rates) for event in _passes(trace))

    try:
        short, full = kernels(typical), kernels(round(parts.data.capacity))
    except ShoestringError:
        return PROPORTIONAL
    if not full:
        return PROPORTIONAL
    length = typical / parts.data.capacity
    slope = (1 - short / full) / (1 - length)
    return LengthWork(fixed=1 - slope, slope=slope)


def _passes(trace: Trace) -> list[Op]:
    """Return the operators of forward and backward in the measured update."""
    operators, is_pass = [], False
    for event in trace.events:
        if isinstance(event, Phase):
            is_pass = event.update == 1 and event.name in ("forward", "backward")
        elif is_pass and isinstance(event, Op):
            operators.append(event)
    return operators
