"""A trial of a few updates on this machine: its plan, its child process, and its measured and predicted values."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoestring import config
from shoestring.check.child import run_child
from shoestring.check.facts import Facts
from shoestring.check.finding import Finding, failed, passed, warned
from shoestring.errors import ShoestringError, TraceError
from shoestring.hardware.catalog import Target
from shoestring.plan.plan import Plan, make_plan
from shoestring.recipe.options import LoadedRecipe
from shoestring.settings import Settings
from shoestring.units import MIB, bytes_text, count_text, seconds_text

SECONDS = 120.0
"""The time limit of a trial, including its start."""
_UPDATE_SECONDS = 5.0
"""If an update is predicted to take longer, the trial uses fewer samples."""
_NON_TENSOR_BYTES = 64 * MIB
"""The growth of a process that no tensor accounts for: libraries that are loaded late, fragments of the allocator."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A trial and the plan with its predictions."""

    plan: Plan
    loaded: LoadedRecipe
    stages: tuple[dict[str, Any], ...]
    """The stages that the child process reported."""
    exit_reason: str = ""
    """How the child process failed; empty if it exited normally."""

    def stages_named(self, name: str) -> list[dict[str, Any]]:
        """Return the reported stages with this name."""
        return [stage for stage in self.stages if stage["stage"] == name]


def plan_trial(
    loaded: LoadedRecipe, target: Target, settings: Settings, facts: Facts
) -> tuple[Plan | None, list[Finding]]:
    """Return a plan for this machine and the findings about it; the plan is None if there is none that fits.

    Raises TraceError if the update cannot be traced.
    """
    try:
        plan = make_plan(loaded, target, settings)
    except TraceError:
        raise
    except ShoestringError as error:
        problems = "; ".join((error.message, *error.problems[:5]))
        return None, [failed("plan", problems, error.hint or "see the same error in: shoestring plan")]
    if not plan.fits:
        hint = "choose smaller options of the recipe (size=tiny, if it has that); shoestring plan shows what would fit"
        return None, [failed("plan", "; ".join(plan.reasons), hint)]
    return plan, [
        passed("plan", f"the recipe fits {target.device.title} with {_settings_text(plan)}"),
        *check_capacity(plan, facts),
    ]


def check_capacity(plan: Plan, facts: Facts) -> list[Finding]:
    """Check that the disk and the GPU have as much free space at present as the plan assumes."""
    findings = []
    free_bytes = facts.disk.free_bytes + facts.disk.used_bytes
    required_bytes = plan.disk.peak_bytes
    message = f"the run needs up to {bytes_text(required_bytes)}; the system reports {bytes_text(free_bytes)} free"
    findings.append(
        passed("room on disk", message)
        if required_bytes <= free_bytes
        else failed("room on disk", message, "free some space, or choose another directory for the run with --run DIR")
    )
    cards = [card for card in facts.driver.cards if card.is_visible] if facts.driver else []
    if cards and facts.target.name != "cpu":
        free_bytes, required_bytes = cards[0].free_bytes, plan.memory.high_bytes
        if required_bytes > free_bytes:
            message = f"the plan needs up to {bytes_text(required_bytes)}, but only {bytes_text(free_bytes)} is free"
            hint = "end the processes that use it (see GPU memory), or choose a smaller micro_batch"
            findings.append(failed("room on the GPU", message, hint))
    return findings


def choose_batch_sizes(plan: Plan, loaded: LoadedRecipe) -> tuple[int, int]:
    """Return (effective batch, microbatch) with which a few updates take a few seconds."""
    effective_batch = loaded.effective_batch
    micro_batch = min(plan.settings.micro_batch or effective_batch, effective_batch)
    seconds = plan.time.predicted.update_seconds
    if seconds is None:
        return micro_batch, micro_batch
    if seconds <= _UPDATE_SECONDS:
        return effective_batch, micro_batch
    minimum = 2 if plan.facts.batch_norm else 1
    samples = min(effective_batch, max(minimum, int(effective_batch * _UPDATE_SECONDS / seconds)))
    return samples, min(micro_batch, samples)


def run_trial(plan: Plan, loaded: LoadedRecipe, target: Target, *, seconds: float = SECONDS) -> Trial:
    """Run a few updates of `plan` in a child process, with fewer samples if they would take long.

    Raises ShoestringError if the smaller batch cannot be planned.
    """
    samples, micro_batch = choose_batch_sizes(plan, loaded)
    if samples < loaded.effective_batch or (plan.settings.gpus or 1) > 1:
        loaded = loaded.replace(effective_batch=samples)
        one_process = {"gpus": 1, "logical_shards": 1, "sharding": None}
        plan = make_plan(loaded, target, plan.settings.replace(micro_batch=micro_batch, **one_process))
    request = {
        "reference": loaded.reference,
        "options": config.as_json(loaded.options),
        "settings": plan.settings.json(),
        "microbatches": _equal_sizes(samples, micro_batch),
        "device": target.device.kind,
    }
    stages, exit_reason = run_child("shoestring.check.trial", request, seconds)
    return Trial(plan=plan, loaded=loaded, stages=stages, exit_reason=exit_reason)


def check_trial(trial: Trial) -> list[Finding]:
    """Return the findings of a trial."""
    findings = [
        passed(
            "data",
            f"{count_text(stage['samples'])} samples for training; loading the first microbatch took "
            f"{seconds_text(stage['seconds'])}",
        )
        for stage in trial.stages_named("data")
    ]
    for error in trial.stages_named("error"):
        problem = "out of memory" if error["memory"] else "an update fails on this machine"
        hint = error["hint"] or (
            "choose a smaller micro_batch, or options for shorter samples"
            if error["memory"]
            else "fix the recipe: it would fail in the same way in shoestring train"
        )
        return [*findings, failed("update", f"{problem}: {error['message']}", hint)]
    if not trial.stages_named("done"):
        updates = len(trial.stages_named("update"))
        last_stage = trial.stages[-1]["stage"] if trial.stages else "start"
        message = (
            f"the trial stopped after {updates} updates (last stage: {last_stage}): "
            f"{trial.exit_reason or 'the process ended'}"
        )
        hint = "choose a smaller micro_batch or model; if the system killed the process, it ran out of RAM"
        return [*findings, failed("update", message, hint)]
    return [*findings, _check_updates(trial), *_check_halves(trial), _check_memory(trial), _check_time(trial)]


def summarize_trial(trial: Trial) -> dict[str, Any] | None:
    """Return the measured and predicted values of a trial as JSON; None if the trial did not finish.

    Keys:
        device (text): the name of the device
        settings (object): the settings of the trial, as in [Settings](settings.md)
        effective_batch (integer): the samples of an update
        memory (object): the memory of the trial
        memory.what (text): what was measured: the growth of the process on a CPU, torch's reserved memory on a GPU
        memory.measured_bytes (integer): the measured peak
        memory.predicted_bytes (integer): the prediction of the same
        memory.low_bytes (integer): its lower bound
        memory.high_bytes (integer): its upper bound
        memory.ratio (number or null): the measured peak divided by the predicted one
        time (object): the time of an update
        time.measured_seconds (number): the measured seconds of an update, without the first
        time.predicted_seconds (number or null): the prediction of the same
        time.low_seconds (number or null): its lower bound
        time.high_seconds (number or null): its upper bound
        time.ratio (number or null): the measured seconds divided by the predicted ones
    """
    last_stages = trial.stages_named("done")
    if not last_stages:
        return None
    (low, predicted, high), measured_bytes = _predicted_memory(trial), int(last_stages[0]["bytes"])
    time, seconds = trial.plan.time, measured_update_seconds(trial)
    return {
        "device": last_stages[0]["device"],
        "settings": trial.plan.settings.json(),
        "effective_batch": trial.loaded.effective_batch,
        "memory": {
            "what": "the process grew by" if _is_on_cpu(trial) else "reserved by torch at the peak",
            "measured_bytes": measured_bytes,
            "predicted_bytes": predicted,
            "low_bytes": low,
            "high_bytes": high,
            "ratio": measured_bytes / predicted if predicted else None,
        },
        "time": {
            "measured_seconds": seconds,
            "predicted_seconds": time.predicted.update_seconds,
            "low_seconds": time.low.update_seconds,
            "high_seconds": time.high.update_seconds,
            "ratio": seconds / time.predicted.update_seconds if time.predicted.update_seconds else None,
        },
    }


def _check_updates(trial: Trial) -> Finding:
    losses = [float(stage["loss"]) for stage in trial.stages_named("update")]
    device = trial.stages_named("done")[0]["device"]
    message = (
        f"{len(losses)} updates of {trial.loaded.effective_batch} samples ran on {device} with "
        f"{_settings_text(trial.plan)}; the first loss is "
    )
    if not math.isfinite(losses[0]):
        return failed(
            "update", f"{message}{losses[0]}", "check the data and loss() for values that are NaN or infinite"
        )
    return passed("update", f"{message}{losses[0]:.4g}")


def _check_halves(trial: Trial) -> list[Finding]:
    hint = "whole_batch = True plans updates that are never split; see docs/guides/recipe.md"
    return [warned("microbatches", stage["difference"], hint) for stage in trial.stages_named("halves")]


def _check_memory(trial: Trial) -> Finding:
    low, predicted, high = _predicted_memory(trial)
    measured_bytes = int(trial.stages_named("done")[0]["bytes"])
    measured_text = bytes_text(measured_bytes)
    message = (
        f"the process grew by {measured_text}" if _is_on_cpu(trial) else f"torch reserved {measured_text} at the peak"
    )
    message += (
        f", predicted {bytes_text(predicted)} ({bytes_text(low)} to {bytes_text(high)})"
        f"{_ratio_text(measured_bytes, predicted)}"
    )
    tolerance = _NON_TENSOR_BYTES if _is_on_cpu(trial) else 0
    if tolerance:
        message += f"; up to {bytes_text(tolerance)} of it may not belong to tensors"
    if measured_bytes > high + tolerance:
        hint = "leave a margin (a smaller micro_batch), and please report that the prediction was too low"
        return warned("memory", message, hint)
    return passed("memory", message)


def _check_time(trial: Trial) -> Finding:
    seconds, time = measured_update_seconds(trial), trial.plan.time
    predicted, low, high = (duration.update_seconds for duration in (time.predicted, time.low, time.high))
    if predicted is None or low is None or high is None:
        return passed("time", f"{seconds_text(seconds)} per update; this device's rates for a prediction are unknown")
    message = (
        f"{seconds_text(seconds)} per update, predicted {seconds_text(predicted)} "
        f"({seconds_text(low)} to {seconds_text(high)}){_ratio_text(seconds, predicted)}"
    )
    if low <= seconds <= high:
        return passed("time", message)
    return warned("time", message, "rely on the measured time; other processes slow a machine down")


def measured_update_seconds(trial: Trial) -> float:
    """Return the median time of an update, without the first: it loads real data and includes one-time work."""
    seconds = [float(stage["seconds"]) for stage in trial.stages_named("update")[1:]]
    stages = next((stage.get("stages", 1) for stage in trial.stages_named("model")), 1)
    # The stages of a recipe take turns, and the prediction is the mean over them.
    return statistics.median(seconds) if stages == 1 else statistics.mean(seconds[-stages:])


def _predicted_memory(trial: Trial) -> tuple[int, int, int]:
    """Return (low, predicted, high) of the measured quantity: torch's reserved memory on a GPU, tensors on a CPU."""
    memory = trial.plan.memory
    prediction = memory.allocated if _is_on_cpu(trial) else memory.reserved
    return prediction.low, prediction.value, prediction.high


def _is_on_cpu(trial: Trial) -> bool:
    return trial.plan.target.device.kind == "cpu"


def _ratio_text(measured: float, predicted: float) -> str:
    return f", ratio {measured / predicted:.2f}" if predicted else ""


def _settings_text(plan: Plan) -> str:
    return f"micro_batch {plan.settings.micro_batch}, {plan.settings.precision}"


def _equal_sizes(samples: int, largest: int) -> Sequence[int]:
    """Split `samples` into microbatches of at most `largest`, as equal as possible."""
    count = -(-samples // largest)
    return [samples // count + (index < samples % count) for index in range(count)]
