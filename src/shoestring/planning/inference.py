"""The plan of predictions with a trained model: the number of inputs to predict at once on a target."""

from dataclasses import dataclass, replace
from typing import Any

from shoestring.base import display
from shoestring.base.settings import Settings
from shoestring.hardware.catalog import Target
from shoestring.planning.candidates import with_nominal_rates
from shoestring.planning.estimate.memory import Breakdown, memory
from shoestring.planning.estimate.time import update_seconds
from shoestring.planning.trace import Tracer
from shoestring.planning.trace.record import Facts, Trace
from shoestring.planning.weight_type import with_weight_type
from shoestring.recipe.options import LoadedRecipe

_TRACED = (4, 8)
"""The batches that are traced to project others."""
_LARGEST_BATCH = 256
_LARGEST_BATCH_WITHOUT_SPEED = 64
"""A larger batch may be no faster, and its rows are written later."""
_USEFUL_GAIN = 1.05
"""The least gain in speed for which the batch is doubled: a larger one leaves less memory free."""


@dataclass(frozen=True, kw_only=True)
class InferencePlan(display.Displayed):
    """The settings of predictions, with their memory and their speed."""

    recipe: str
    target: Target
    """Where the predictions are planned for."""
    settings: Settings
    """With the microbatch, the number of inputs at once, and the precision."""
    facts: Facts
    memory: Breakdown
    """The memory of the predictions."""
    inputs_per_second: float | None
    """The speed; None on a device without known rates, and for a recipe that generates and does not tell how many steps
    it takes (`recipe/generation.py`)."""

    @property
    def fits(self) -> bool:
        return self.memory.fits

    @property
    def verdict(self) -> str:
        """Whether the memory suffices: "fits" or "does not fit"."""
        return "fits" if self.fits else "does not fit"

    def json(self) -> dict[str, Any]:
        """Return the plan as JSON; bytes are integers."""
        return {
            "target": self.target.name,
            "verdict": self.verdict,
            "settings": self.settings.json(),
            "memory": self.memory.json(),
            "inputs_per_second": self.inputs_per_second,
            "notes": list(self.facts.notes),
        }

    def __str__(self) -> str:
        """Return the plan as `shoestring plan --for predict` prints it."""
        return display.text(self)


def plan_inference(loaded: LoadedRecipe, target: Target, requested: Settings) -> InferencePlan:
    """Choose the batch and the precision with which `target` predicts fastest, as far as `requested` leaves them open.

    One GPU of the target is used. A recipe that generates is planned in the narrowest precision, since its speed is not
    known.

    Raises TraceError if the model cannot be traced.
    """
    loaded = with_weight_type(loaded, target, requested)
    supported = target.device.precisions
    device = with_nominal_rates(target.device)  # the same command plans the same, whatever was measured
    compared = replace(target, device=device)
    with Tracer(loaded) as tracer:
        has_speed = _plan(tracer, loaded, target, requested.replace(micro_batch=1, precision="fp32")).inputs_per_second
        precisions = [requested.precision] if requested.precision else supported if has_speed else supported[-1:]
        plans = [_best_batch(tracer, loaded, compared, requested.replace(precision=name)) for name in precisions]
        fitting = [plan for plan in plans if plan.fits] or plans
        best = max(fitting, key=lambda plan: (plan.inputs_per_second or 0.0, -plan.memory.peak_bytes))
        return best if device is target.device else _plan(tracer, loaded, target, best.settings)


def _best_batch(tracer: Tracer, loaded: LoadedRecipe, target: Target, settings: Settings) -> InferencePlan:
    """Return the plan with the largest batch that fits and is noticeably faster than half of it.

    Memory and speed of a batch are projected from two traces, and the chosen one is traced.
    """
    if settings.micro_batch is not None:
        return _plan(tracer, loaded, target, settings)
    first, second = (_plan(tracer, loaded, target, settings.replace(micro_batch=size)) for size in _TRACED)
    size = _TRACED[0]
    largest = _LARGEST_BATCH if first.inputs_per_second else _LARGEST_BATCH_WITHOUT_SPEED
    while 2 * size <= largest and _project_bytes(first, second, 2 * size) <= first.memory.capacity_bytes:
        if first.inputs_per_second:
            speed, double_speed = (_project_speed(first, second, batch) for batch in (size, 2 * size))
            if double_speed < _USEFUL_GAIN * speed:
                break
        size *= 2
    plans = {plan.settings.micro_batch: plan for plan in (first, second)}
    while True:
        plan = plans.get(size) or _plan(tracer, loaded, target, settings.replace(micro_batch=size))
        if plan.fits or size == 1:
            return plan
        size //= 2


def _project_bytes(first: InferencePlan, second: InferencePlan, batch: int) -> float:
    """Return the high end of the memory of a batch, on the line through two plans."""
    low, high = _TRACED
    per_input = (second.memory.high_bytes - first.memory.high_bytes) / (high - low)
    return first.memory.high_bytes + (batch - low) * per_input


def _project_speed(first: InferencePlan, second: InferencePlan, batch: int) -> float:
    """Return the inputs per second of a batch, on the line through the seconds of two plans."""
    assert first.inputs_per_second and second.inputs_per_second
    low, high = _TRACED
    seconds = low / first.inputs_per_second, high / second.inputs_per_second
    return batch / (seconds[0] + (batch - low) * (seconds[1] - seconds[0]) / (high - low))


def _has_speed(loaded: LoadedRecipe, trace: Trace) -> bool:
    """Return whether all of a prediction's work is in the trace, or is counted there."""
    return trace.counts_steps or not (loaded.parts.use.inference or loaded.parts.learning.rollout)


def _plan(tracer: Tracer, loaded: LoadedRecipe, target: Target, settings: Settings) -> InferencePlan:
    assert settings.micro_batch is not None
    trace = tracer.trace_inference(settings, target.device)
    seconds = update_seconds(trace, target.device, 1) if _has_speed(loaded, trace) else None
    return InferencePlan(
        recipe=loaded.name,
        target=target,
        settings=settings,
        facts=tracer.facts.with_bounds(trace.bounds),
        memory=memory(
            trace,
            target.device,
            allocator=settings.allocator or "segments",
            cudnn_benchmark=settings.cudnn_benchmark,
        ),
        inputs_per_second=settings.micro_batch / seconds.value if seconds and seconds.value else None,
    )
