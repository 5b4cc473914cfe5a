"""The type of the weights to use in a run's directory, chosen so that the run fits the disk."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

from shoestring.base.settings import Settings
from shoestring.base.units import bytes_text
from shoestring.planning.candidates import Candidate
from shoestring.planning.costs import PlannedDisk

ROUNDED: Literal["fp16"] = "fp16"
"""Trained weights are far below its greatest value, and it has three more bits of precision than bf16."""


def fitting_light_weights(
    chosen: Candidate, disk_of: Callable[[Candidate], PlannedDisk]
) -> Literal["own", "fp16", "bf16"]:
    """Return the setting `light_weights`: if it was left open, rounded weights if the run fits the disk only with them.

    Checkpoints, with which a run is continued, are never rounded.
    """
    if chosen.settings.light_weights is not None:
        return chosen.settings.light_weights
    needs_rounding = not disk_of(chosen).fits and disk_of(_rounded(chosen)).fits
    return ROUNDED if needs_rounding else "own"


def disk_reason(chosen: Candidate, requested: Settings, disk_of: Callable[[Candidate], PlannedDisk]) -> Iterator[str]:
    """Yield why the weights are rounded, if the plan has chosen it."""
    if requested.light_weights is None and chosen.settings.light_weights == ROUNDED:
        own = disk_of(replace(chosen, settings=chosen.settings.replace(light_weights="own")))
        assert own.limit_bytes is not None
        yield (
            f"light_weights {ROUNDED}: with the best and last weights in their own type the run would need "
            f"{bytes_text(own.peak_bytes)} of disk space, but only {bytes_text(own.limit_bytes)} are available; "
            "checkpoints stay exact"
        )


def _rounded(chosen: Candidate) -> Candidate:
    return replace(chosen, settings=chosen.settings.replace(light_weights=ROUNDED))
