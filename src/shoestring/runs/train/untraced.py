"""The plan of a run whose update cannot be traced: nothing is predicted, its microbatch was found by trying."""

from typing import Any

from shoestring.base import config
from shoestring.base.errors import TraceError
from shoestring.base.run_limits import disk_parts
from shoestring.base.settings import Settings
from shoestring.base.streams import write_messages
from shoestring.base.units import bytes_text
from shoestring.hardware.catalog import Target
from shoestring.planning.costs import PlannedDisk
from shoestring.planning.plan import Plan
from shoestring.recipe.options import LoadedRecipe
from shoestring.runs.check.measuring import GROWTH_SECONDS, Measurement, measure
from shoestring.training.session.deadline import Deadline

VERDICT = "not estimated"
_TIME_SHARE = 0.25
"""The largest share of the remaining session in which larger microbatches are tried."""


def plan_by_trying(
    loaded: LoadedRecipe, target: Target, requested: Settings, error: TraceError, deadline: Deadline
) -> tuple[Settings, dict[str, Any]]:
    """Return the settings of a run, and its plan as JSON, after `error` has ended the estimate.

    Raises RunError if the recipe's code fails outside of the trace as well.
    """
    write_messages(
        f"note: the update cannot be estimated: {error.message}",
        "note: it is trained all the same; microbatches are tried on this machine, measured instead of predicted",
    )
    remaining = deadline.remaining()
    seconds = GROWTH_SECONDS if remaining is None else min(GROWTH_SECONDS, _TIME_SHARE * max(0.0, remaining))
    measurement = measure(loaded, requested, target.device.kind, seconds=seconds)
    return measurement.settings, _plan_json(loaded, target, error, measurement)


def require_certain(plan: Plan) -> None:
    """Raise TraceError if only an upper estimate shows that the run does not fit in memory: it may fit."""
    if plan.facts.bounds and not plan.memory.fits:
        raise TraceError(
            f"the upper estimate of {bytes_text(plan.memory.high_bytes)} is more than the "
            f"{bytes_text(plan.memory.capacity_bytes)} available",
            problems=plan.facts.bounds,
        )


def _plan_json(loaded: LoadedRecipe, target: Target, error: TraceError, measurement: Measurement) -> dict[str, Any]:
    return {
        "verdict": VERDICT,
        "recipe": loaded.name,
        "options": config.as_json(loaded.options),
        "target": target.name,
        "device": target.device.title,
        "settings": measurement.settings.json(),
        "not_estimated": f"{VERDICT}, but measured: {error.message}; {measurement.micro_batch_text}",
        "measured": list(measurement.attempts),
        "disk": _disk(target, measurement, loaded.epochs),
        "reasons": [f"{VERDICT}: {error.message}", *error.problems, measurement.micro_batch_text],
    }


def _disk(target: Target, measurement: Measurement, epochs: int) -> dict[str, Any]:
    if measurement.full_bytes is None or measurement.light_bytes is None:
        return {}
    full_bytes, light_bytes = measurement.full_bytes, measurement.light_bytes
    return PlannedDisk(
        full_checkpoint_bytes=full_bytes,
        light_checkpoint_bytes=light_bytes,
        parts=disk_parts(full_bytes, light_bytes, measurement.settings, epochs),
        epochs=epochs,
        limit_bytes=target.platform.disk_bytes if target.platform else None,
    ).json()
