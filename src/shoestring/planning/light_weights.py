"""What a run's directory retains, chosen to fit the disk: the checkpoints, and the type of the weights to use."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from shoestring.base.run_limits import KEEP_CHECKPOINTS
from shoestring.base.settings import Settings
from shoestring.base.units import bytes_text
from shoestring.planning.candidates import Candidate
from shoestring.planning.costs import PlannedDisk

ROUNDED: Literal["fp16"] = "fp16"
"""Trained weights are far below its greatest value, and it has three more bits of precision than bf16."""


def fitting_files(chosen: Candidate, disk_of: Callable[[Candidate], PlannedDisk]) -> dict[str, Any]:
    """Return the settings `light_weights` and `keep_checkpoints`: of those that were left open, the first that fit.

    That are the weights in their own type and two checkpoints, then rounded weights, then one checkpoint. Checkpoints,
    with which a run is continued, are never rounded. If nothing fits, the first values are returned.
    """
    settings = chosen.settings
    types = ["own", ROUNDED] if settings.light_weights is None else [settings.light_weights]
    counts = [KEEP_CHECKPOINTS, 1] if settings.keep_checkpoints is None else [settings.keep_checkpoints]
    choices = [{"light_weights": kind, "keep_checkpoints": count} for count in counts for kind in types]
    return next((values for values in choices if disk_of(_with(chosen, values)).fits), choices[0])


def disk_reasons(chosen: Candidate, requested: Settings, disk_of: Callable[[Candidate], PlannedDisk]) -> Iterator[str]:
    """Yield why the weights are rounded and why only one checkpoint is kept, if the plan has chosen it."""
    if requested.light_weights is None and chosen.settings.light_weights == ROUNDED:
        yield (
            f"light_weights {ROUNDED}: with the best and last weights in their own type the run would need "
            f"{_needs(disk_of(_with(chosen, {'light_weights': 'own'})))}; checkpoints stay exact"
        )
    if requested.keep_checkpoints is None and chosen.settings.keep_checkpoints == 1:
        yield (
            f"keep_checkpoints 1: with {KEEP_CHECKPOINTS} full checkpoints the run would need "
            f"{_needs(disk_of(_with(chosen, {'keep_checkpoints': KEEP_CHECKPOINTS})))}; the older one is deleted only "
            "when the newer one is written and verified"
        )


def _needs(disk: PlannedDisk) -> str:
    assert disk.limit_bytes is not None
    return f"{bytes_text(disk.peak_bytes)} of disk space, but only {bytes_text(disk.limit_bytes)} are available"


def _with(chosen: Candidate, values: Mapping[str, Any]) -> Candidate:
    return replace(chosen, settings=chosen.settings.replace(**values))
