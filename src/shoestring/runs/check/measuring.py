"""The microbatch of a recipe whose update cannot be traced: found by trying, measured instead of predicted."""

import itertools
from dataclasses import dataclass
from typing import Any

from shoestring.base import config
from shoestring.base.errors import RunError, ShoestringError, TraceError
from shoestring.base.settings import Settings
from shoestring.base.units import bytes_text, seconds_text
from shoestring.hardware.catalog import Target
from shoestring.planning.untraced import TRAINING_HINT
from shoestring.recipe.options import LoadedRecipe
from shoestring.runs.check.child import run_child
from shoestring.runs.check.finding import Finding, failed, passed, warned

GROWTH_SECONDS = 60.0
"""After this time no larger microbatch is tried."""
_LIMIT_SECONDS = 600.0
"""The time limit of all attempts, including their start and the smallest microbatch."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The settings to train with, and what was measured with them."""

    settings: Settings
    reason: str
    """Why this microbatch."""
    attempts: tuple[dict[str, Any], ...] = ()
    """The microbatches that ran, with their peak of memory in use in `bytes` and the `seconds` of their first try."""
    full_bytes: int | None = None
    """The bytes of a checkpoint on disk."""
    light_bytes: int | None = None

    @property
    def micro_batch_text(self) -> str:
        """The microbatch, and why."""
        return f"micro_batch {self.settings.micro_batch}: {self.reason}"


def measure(loaded: LoadedRecipe, requested: Settings, device: str, *, seconds: float = GROWTH_SECONDS) -> Measurement:
    """Make an update with microbatches of 2, 4, 8, ... samples, in a child process, and return the largest that fits.

    Only a microbatch in `requested` is tried, and kept even if it does not fit: training reduces it. No larger one is
    tried after `seconds`. A recipe that exists only in this process is not tried.

    Raises RunError if the recipe's code fails with every microbatch that was tried.
    """
    settings = requested.replace(precision=requested.precision or "fp32", checkpointing=requested.recomputed)
    largest = loaded.effective_batch
    if not loaded.reference:
        settings = settings.replace(micro_batch=requested.micro_batch or largest)
        return Measurement(settings=settings, reason="not tried, because the recipe exists only in this process")
    request = {
        "reference": loaded.reference,
        "options": config.as_json(loaded.options),
        "settings": settings.replace(micro_batch=requested.micro_batch or largest).json(),
        "sizes": [min(requested.micro_batch, largest)] if requested.micro_batch else _sizes(loaded),
        "device": device,
        "seconds": seconds,
    }
    stages, exit_reason = run_child("shoestring.runs.check.attempts", request, _LIMIT_SECONDS)
    attempts = tuple(stage for stage in stages if stage["stage"] == "size")
    batch_error, stages = _before_data(stages)
    errors = [stage for stage in stages if stage["stage"] == "error"]
    if errors and not attempts:
        raise RunError(errors[-1]["message"], problems=errors[-1]["problems"], hint=errors[-1]["hint"])
    disk = next((stage for stage in stages if stage["stage"] == "disk"), {})
    full = next((stage for stage in stages if stage["stage"] == "full"), None)
    micro_batch = requested.micro_batch or (attempts[-1]["micro_batch"] if attempts else min(2, largest))
    return Measurement(
        settings=settings.replace(micro_batch=micro_batch),
        reason=_reason(requested, attempts, full, exit_reason, largest) + _samples_note(batch_error),
        attempts=tuple({name: attempt[name] for name in ("micro_batch", "bytes", "seconds")} for attempt in attempts),
        full_bytes=disk.get("full"),
        light_bytes=disk.get("light"),
    )


def check_by_trying(loaded: LoadedRecipe, target: Target, settings: Settings, error: TraceError) -> list[Finding]:
    """Return the findings of a check whose estimate has ended with `error`: what the attempts show."""
    findings = [warned("plan", f"could not be estimated: {error.message}", TRAINING_HINT)]
    if not loaded.reference:
        message = "not tried: the recipe exists only in this process"
        return [*findings, warned("update", message, "save the recipe in a file to have it tried")]
    try:
        measurement = measure(loaded, settings, target.device.kind)
    except ShoestringError as failure:
        message = "; ".join((f"an update fails on this machine: {failure.message}", *failure.problems))
        return [*findings, failed("update", message, "fix the recipe: it would fail in the same way in training")]
    if not measurement.attempts:
        return [*findings, failed("update", measurement.micro_batch_text, "choose a smaller micro_batch or model")]
    return [*findings, passed("update", measurement.micro_batch_text)]


def _sizes(loaded: LoadedRecipe) -> list[int]:
    """Return the microbatches to try, in their order: powers of two and the effective batch."""
    largest = loaded.effective_batch
    if loaded.parts.learning.whole_batch:
        return [largest]
    powers = itertools.takewhile(lambda size: size < largest, (2**exponent for exponent in itertools.count(1)))
    return [*powers, largest]


def _before_data(stages: tuple[dict[str, Any], ...]) -> tuple[str, tuple[dict[str, Any], ...]]:
    """Return the last error before samples of the data were tried, and the stages from there; "" and all without it."""
    start = next((number for number, stage in enumerate(stages) if stage["stage"] == "data"), 0)
    return (stages[start - 1]["message"] if start else ""), stages[start:]


def _samples_note(batch_error: str) -> str:
    if not batch_error:
        return ""
    return (
        "; tried with samples of data(), which may be smaller than the largest, because an update of batch(size) "
        f"fails: {batch_error}"
    )


def _reason(
    requested: Settings, attempts: tuple[dict[str, Any], ...], full: dict[str, Any] | None, failure: str, largest: int
) -> str:
    if not attempts:
        cause = full["message"] if full else failure or "no update was completed"
        return f"not measured: {cause}"
    last = attempts[-1]
    measured = (
        f"an update of {last['micro_batch']} took {bytes_text(last['bytes'])} and {seconds_text(last['seconds'])}"
    )
    if requested.micro_batch:
        return f"this value was requested; {measured}"
    if last["micro_batch"] == largest:
        return f"the whole effective batch was tried and fits; {measured}"
    stop = f"with {full['micro_batch']}, {full['message']}" if full else failure or "larger ones would take long to try"
    return f"the largest that was tried and fits ({stop}); {measured}"
