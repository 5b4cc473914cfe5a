"""What will happen: the memory of given settings, and plans."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from shoestring.api.arguments import checked_path, require_limits
from shoestring.base.packages.broken import usable_libraries

if TYPE_CHECKING:
    from shoestring.planning.comparison import Comparison
    from shoestring.planning.estimation import Estimate
    from shoestring.planning.inference import InferencePlan
    from shoestring.planning.plan import Plan


def estimate(recipe: str | object, on: str = "local", **values: object) -> Estimate:
    """Estimate the peak memory of one training step as named parts, without a GPU.

    `recipe` is the name of one, a path, or an object with `model()`, `batch(size)` and `loss(model, batch)`; `values`
    are its options and the settings. The default microbatch is the effective batch, the default precision fp32.

    Raises UsageError for unknown names and invalid values, TraceError if a training step of the model cannot be traced.
    """
    with usable_libraries():
        from shoestring.hardware.targets import find
        from shoestring.planning.estimation import make_estimate
        from shoestring.recipe.finding import choose_for_plan

    loaded, settings = choose_for_plan(recipe, values)
    return make_estimate(loaded, find(on), settings)


@overload
def plan(recipe: str | object, on: Literal["kaggle"], **values: Any) -> Comparison: ...


@overload
def plan(recipe: str | object, on: str = "local", **values: Any) -> Plan: ...


def plan(
    recipe: str | object,
    on: str = "local",
    *,
    limit_seconds: float | None = None,
    disk_bytes: int | None = None,
    ram_bytes: int | None = None,
    usd_per_hour: float | None = None,
    calibrate: str | Path | None = None,
    probe: bool | None = None,
    **values: object,
) -> Plan | Comparison:
    """Choose the fastest settings that fit the target, and predict their memory, time, sessions and disk.

    `limit_seconds` of a session, `disk_bytes` of the run's directory and `ram_bytes` of the machine replace the
    platform's limits, `usd_per_hour` of one GPU replaces the list price, and the measured time of the run `calibrate`,
    made on the same GPU, scales the predictions; a file of `measure` there replaces the rates that they are made of.
    Options and settings in `values` are fixed, all others are chosen. On `kaggle` all machines of Kaggle are compared,
    as `compare` does. A plan for this machine (`local`, `cpu`) is measured: a few updates are made in a child process
    and discarded, unless `probe` is False; by default unless SHOESTRING_PROBE=0 is set.
    The errors are those of `estimate`.
    """
    comparison = compare(
        recipe,
        [on],
        limit_seconds=limit_seconds,
        disk_bytes=disk_bytes,
        ram_bytes=ram_bytes,
        usd_per_hour=usd_per_hour,
        calibrate=calibrate,
        by_seconds=None,
        probe=probe,
        **values,
    )
    return comparison if comparison.platform else comparison.plans[0]


def plan_inference(recipe: str | object, on: str = "local", **values: object) -> InferencePlan:
    """Choose the number of inputs that a trained model predicts at once, and predict memory and speed, without a GPU.

    Options and settings in `values` are fixed. The errors are those of `estimate`.
    """
    with usable_libraries():
        from shoestring.hardware.targets import find
        from shoestring.planning.inference import plan_inference
        from shoestring.recipe.finding import choose_for_plan

    loaded, settings = choose_for_plan(recipe, values)
    return plan_inference(loaded, find(on), settings)


def compare(
    recipe: str | object,
    on: str | Iterable[str],
    *,
    limit_seconds: float | None = None,
    disk_bytes: int | None = None,
    ram_bytes: int | None = None,
    usd_per_hour: float | None = None,
    calibrate: str | Path | None = None,
    by_seconds: float | None = None,
    probe: bool | None = None,
    **values: object,
) -> Comparison:
    """Plan for each of the targets `on`, and compare time and cost. The target `kaggle` is all machines of Kaggle.

    `by_seconds` is the time from now within which the run has to be done: `cheapest` is the plan that does it for the
    least money.
    The other arguments and the errors are those of `plan` and apply to every target.
    """
    with usable_libraries():
        from shoestring.hardware.targets import find, groups, with_limits, with_machines
        from shoestring.planning.comparison import compare
        from shoestring.recipe.finding import choose_for_plan
        from shoestring.runs.calibrate import load_calibration
        from shoestring.runs.check.probe.probing import is_enabled, measured_here

    require_limits(by_seconds=by_seconds)
    require_limits(limit_seconds=limit_seconds, disk_bytes=disk_bytes, ram_bytes=ram_bytes, usd_per_hour=usd_per_hour)
    loaded, settings = choose_for_plan(recipe, values)
    names = [on] if isinstance(on, str) else list(on)
    targets = [
        with_limits(find(name), session_seconds=limit_seconds, disk_bytes=disk_bytes, ram_bytes=ram_bytes)
        for name in with_machines(names)
    ]
    calibration = load_calibration(checked_path(calibrate)) if calibrate else None
    comparison = compare(
        loaded,
        targets,
        settings,
        usd_per_hour=usd_per_hour,
        calibration=calibration,
        by_hours=None if by_seconds is None else by_seconds / 3600,
        platform=next((name for name in names if name in groups()), None),
    )
    if not is_enabled(probe):
        return comparison
    return replace(comparison, plans=tuple(measured_here(comparison.plans, loaded, settings)))
