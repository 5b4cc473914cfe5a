"""A probe of a plan on this machine, and what it may cost."""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from shoestring.base import config
from shoestring.base.errors import UsageError
from shoestring.base.processes import started_at
from shoestring.base.settings import Settings
from shoestring.base.streams import write_messages
from shoestring.base.units import MIB, plural, seconds_text
from shoestring.hardware import targets
from shoestring.planning.measured_plan import MEASURED, describe, with_measurement
from shoestring.planning.measurement import Measurement
from shoestring.planning.plan import Plan
from shoestring.planning.shares import samples_per_gpu
from shoestring.planning.weight_type import with_weight_type
from shoestring.recipe.options import LoadedRecipe
from shoestring.runs.check.child import run_child
from shoestring.runs.check.memory import read_status
from shoestring.runs.check.probe.enough import LEAST_UPDATES
from shoestring.runs.check.probe.result import measurement
from shoestring.techniques.expandable_segments import expandable_segments

MOST_SECONDS, MOST_SHARE = 30.0, 0.02
"""A probe takes at most so many seconds, or this share of the run if that is more."""
LEAST_SECONDS = 10.0
"""A probe is not begun if there is less time for it: starting and building a model takes seconds."""
VARIABLE = "SHOESTRING_PROBE"
"""The environment variable that switches probes off if it is 0."""
_MOST_PLANNING_BYTES = 64 * MIB
"""In a plan of a process that will not train: the rest of its memory is that of other work."""
_SLOW_SECONDS = 3.0
"""Slower updates are shown one by one."""
_UPDATES_SHARE = 0.5
"""The share of the time in which the least number of updates is to be made, else they have fewer samples."""
_GRACE_SECONDS = 3.0
"""The time to end by itself, after which the process of a probe is killed."""
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "WANDB_MODE": "disabled",
}
"""A probe downloads nothing and reports to nobody: what is not on this machine yet would be most of its time."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What the child process of a probe has reported."""

    stages: tuple[dict[str, Any], ...]
    """The stages that it reported."""
    exit_reason: str
    """How it failed; empty if it exited normally."""
    samples: int
    """The samples of an update."""
    scale: float
    """The samples of an update of the run, as a multiple of these."""
    seconds: float
    """The duration."""


def is_enabled(requested: bool | None) -> bool:
    """Return whether plans are measured on this machine: as requested, else unless SHOESTRING_PROBE=0 is set."""
    return os.environ.get(VARIABLE) != "0" if requested is None else requested


def measured_plan(
    plan: Plan,
    loaded: LoadedRecipe,
    requested: Settings,
    *,
    available_seconds: float | None = None,
    trains_here: bool = False,
) -> Plan:
    """Return the plan of `loaded` for this machine with the settings `requested`, measured by a probe.

    There are messages for the user.

    The probe takes at most `available_seconds`. Without enough time for one, and for a recipe that exists only in this
    process or has no data here, the plan remains as it is. `trains_here`: this process will train.
    """
    seconds = budget_seconds(plan)
    if available_seconds is not None:
        seconds = min(seconds, available_seconds)
    if reason := _obstacle(loaded, seconds):
        write_messages(f"note: the plan is not measured, because {reason}")
        return plan
    write_messages(f"measuring a few updates with these settings, which are discarded; at most {seconds_text(seconds)}")
    measured = probe(loaded, plan, seconds=seconds, on_stage=_show_stage)
    if not trains_here:
        measured = replace(measured, planning_bytes=min(measured.planning_bytes, _MOST_PLANNING_BYTES))
    planning_seconds = time.monotonic() - started_at() if trains_here else 0.0
    result = with_measurement(plan, measured, loaded, requested, planning_seconds=planning_seconds)
    assert result.measured
    write_messages(f"{MEASURED}: {describe(result.measured)}")
    return result


def measured_here(plans: Iterable[Plan], loaded: LoadedRecipe, requested: Settings) -> Iterator[Plan]:
    """Yield the plans of `loaded` with the settings `requested`; those for this machine that fit are measured."""
    for plan in plans:
        is_here = plan.target.name in targets.PROBED
        recipe = with_weight_type(loaded, plan.target, requested)
        yield measured_plan(plan, recipe, requested) if is_here and plan.fits else plan


def _obstacle(loaded: LoadedRecipe, seconds: float) -> str:
    """Return why no probe can be made in so many seconds; empty if one can."""
    if not loaded.reference:
        return "the recipe exists only in this process"
    if loaded.parts.data.data is None or loaded.has_placeholder_data:
        return "it has no data here"
    return f"there are only {seconds_text(max(0.0, seconds))} for it" if seconds < LEAST_SECONDS else ""


def _show_stage(stage: Mapping[str, Any]) -> None:
    """Show how far a probe is, where it takes longest."""
    if stage["stage"] == "model":
        write_messages(f"data and model are ready after {seconds_text(stage['seconds'])}; making updates")
    elif stage["stage"] == "update" and stage["seconds"] > _SLOW_SECONDS:
        write_messages(f"an update took {seconds_text(stage['seconds'])}")


def budget_seconds(plan: Plan) -> float:
    """Return how long a probe of this plan may take."""
    return max(MOST_SECONDS, MOST_SHARE * (plan.time.predicted.total_seconds or 0.0))


def probe(
    loaded: LoadedRecipe,
    plan: Plan,
    *,
    seconds: float | None = None,
    on_stage: Callable[[dict[str, Any]], object] = lambda _: None,
) -> Measurement:
    """Make a few updates of the planned run on this machine, in a child process, and return what they took.

    The recipe has a reference. The updates are discarded, and no random numbers of this process are used. It takes at
    most `seconds`, by default `budget_seconds`; what was measured until then is returned. `on_stage` is called with the
    stages that the child reports (`child.py`).
    """
    limit = budget_seconds(plan) if seconds is None else seconds
    result = run_probe(loaded, plan, seconds=limit, on_stage=on_stage)
    notes = []
    if (gpus := plan.settings.processes) > 1:
        notes.append(f"one process made the share of one of {gpus}, without exchanging gradients")
    if result.scale != 1.0:
        share = round(result.scale * result.samples)
        notes.append(f"the updates had {plural(result.samples, 'sample')}, and the times are scaled to {share}")
    measured = measurement(
        result.stages, exit_reason=result.exit_reason, device=plan.target.device.title, scale=result.scale
    )
    start = next((stage for stage in result.stages if stage["stage"] == "start"), None)
    planning_bytes = max(0, read_status("VmRSS") - start["resident_bytes"]) if start else 0
    return replace(measured, seconds=result.seconds, notes=tuple(notes), planning_bytes=planning_bytes)


def run_probe(
    loaded: LoadedRecipe,
    plan: Plan,
    *,
    seconds: float,
    is_check: bool = False,
    on_stage: Callable[[dict[str, Any]], object] = lambda _: None,
) -> Probe:
    """Run the child process of a probe for at most `seconds`; `is_check`: it also makes the comparisons of a check."""
    share = samples_per_gpu(loaded.effective_batch, plan.settings)
    loaded = _with_batch(loaded, min(share, _affordable_samples(plan, loaded, seconds)))
    samples = loaded.effective_batch
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="shoestring-probe-") as folder:
        request = {
            "reference": loaded.reference,
            "options": config.as_json(loaded.options),
            "settings": _settings(plan, samples).json(),
            "device": plan.target.device.kind,
            "target": plan.target.name,
            "folder": folder,
            "seconds": seconds,
            "threads": _threads(),
            "is_check": is_check,
        }
        stages, exit_reason = run_child(
            "shoestring.runs.check.probe.child",
            request,
            seconds + _GRACE_SECONDS,
            environment=_environment(plan),
            on_stage=on_stage,
        )
    return Probe(
        stages=stages,
        exit_reason=exit_reason,
        samples=samples,
        scale=share / samples,
        seconds=time.monotonic() - started,
    )


def _with_batch(loaded: LoadedRecipe, samples: int) -> LoadedRecipe:
    """Return the recipe with the smallest effective batch of at least so many samples that its options allow."""
    for effective_batch in range(samples, loaded.effective_batch):
        with suppress(UsageError):  # such as a group of completions that it would divide
            return loaded.replace(effective_batch=effective_batch)
    return loaded


def _affordable_samples(plan: Plan, loaded: LoadedRecipe, seconds: float) -> int:
    """Return with how many samples the least number of updates ends in time, if the prediction is right.

    A microbatch is never smaller than planned: its memory is measured as well.
    """
    effective_batch, micro_batch = loaded.effective_batch, plan.settings.micro_batch or loaded.effective_batch
    predicted = plan.time.predicted.update_seconds
    available = _UPDATES_SHARE * seconds / LEAST_UPDATES
    if predicted is None or predicted <= available or loaded.parts.learning.whole_batch:
        return effective_batch
    affordable = int(effective_batch * available / predicted)
    return min(effective_batch, max(1, affordable // micro_batch) * micro_batch)


def _settings(plan: Plan, samples: int) -> Settings:
    """Return the settings of the plan in one process; inputs are not copied first."""
    settings = plan.settings.replace(stage="no", micro_batch=min(plan.settings.micro_batch or samples, samples))
    if settings.processes == 1:
        return settings
    return settings.replace(gpus=1, logical_shards=1, sharding=None)


def _environment(plan: Plan) -> Mapping[str, str]:
    """Return the variables of the child's environment."""
    return _OFFLINE | (expandable_segments() if plan.settings.allocator == "expandable" else {})


def _threads() -> int | None:
    """Return the number of threads with which torch computes in this process; None if it is not imported."""
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch else None
