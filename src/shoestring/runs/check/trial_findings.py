"""A trial of a few updates on this machine: a probe of its plan, and its measured and predicted values."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shoestring.base.errors import ShoestringError, TraceError
from shoestring.base.settings import Settings
from shoestring.base.units import MIB, bytes_text, count_text, plural, seconds_text
from shoestring.hardware.catalog import Target
from shoestring.planning.measurement import Measurement
from shoestring.planning.plan import Plan
from shoestring.planning.planner import make_plan
from shoestring.recipe.options import LoadedRecipe
from shoestring.runs.check.facts import Facts
from shoestring.runs.check.finding import Finding, failed, passed, warned
from shoestring.runs.check.probe.probing import Probe, run_probe
from shoestring.runs.check.probe.result import measurement
from shoestring.runs.check.randomness import check_randomness

_ADAPTER_NOTE = "lora_targets="
"""The beginning of the note on the share of the weights that LoRA adapts (`techniques/lora.py`)."""
SECONDS = 90.0
"""The time limit of a trial, including its start."""
_NON_TENSOR_BYTES = 64 * MIB
"""The growth of a process that no tensor accounts for: libraries that are loaded late, fragments of the allocator."""
_TRAINER_BYTES = 320 * MIB
"""The same with a library's trainer, which imports most of its modules when it is built and trains: 218 MiB for TRL;
and for a small model, whose memory is mostly that of such modules."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A trial and the plan with its predictions."""

    plan: Plan
    loaded: LoadedRecipe
    probe: Probe
    """What the child process has reported."""

    @cached_property
    def measured(self) -> Measurement:
        """What the probe has measured."""
        probe, title = self.probe, self.plan.target.device.title
        return measurement(probe.stages, exit_reason=probe.exit_reason, device=title, scale=probe.scale)

    @property
    def computing_seconds(self) -> float | None:
        """The seconds of an update without waiting for its data; None if no update after the first was made."""
        if self.measured.update_seconds is None:
            return None
        return self.measured.update_seconds - (self.measured.waiting_seconds or 0.0)

    def stages_named(self, name: str) -> list[dict[str, Any]]:
        """Return the reported stages with this name."""
        return [stage for stage in self.probe.stages if stage["stage"] == name]

    def last(self, name: str) -> dict[str, Any] | None:
        """Return the last reported stage with this name; None if there is none."""
        return next(reversed(self.stages_named(name)), None)


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
        *(passed("adapters", note) for note in plan.facts.notes if note.startswith(_ADAPTER_NOTE)),
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


def run_trial(plan: Plan, loaded: LoadedRecipe, target: Target, *, seconds: float = SECONDS) -> Trial:
    """Make a few updates of `plan` in a child process, as training makes them; of several processes in one.

    Raises ShoestringError if it cannot be planned for one process.
    """
    if plan.settings.processes > 1:
        one_process = plan.settings.replace(gpus=1, logical_shards=1, sharding=None)
        plan = make_plan(loaded, target, one_process)
    return Trial(plan=plan, loaded=loaded, probe=run_probe(loaded, plan, seconds=seconds, is_check=True))


def check_trial(trial: Trial) -> list[Finding]:
    """Return the findings of a trial."""
    findings = []
    if (data := trial.last("data")) and trial.loaded.parts.data.data is not None:
        samples, seconds = count_text(data["samples"]), seconds_text(data["seconds"])
        findings.append(passed("data", f"{samples} samples for training; data() took {seconds}"))
    if trial.last("updates") is None:
        return [*findings, _check_failure(trial, "update")]
    findings += [
        _check_updates(trial),
        *_check_halves(trial),
        *check_randomness(trial.last("randomness"), trial.last("loss")),
        _check_memory(trial),
        _check_time(trial),
    ]
    if trial.measured.problem:
        return [*findings, _check_failure(trial, "evaluation")]
    return [*findings, *_check_evaluation(trial)]


def _check_failure(trial: Trial, name: str) -> Finding:
    """Return why the trial ended before it was complete."""
    if error := trial.last("error"):
        failure = f"{error['during']} fails on this machine: {error['message']}"
        problem = error["message"] if error["memory"] else failure
        hint = error["hint"] or (
            "choose a smaller micro_batch, or options for shorter samples"
            if error["memory"]
            else "fix the recipe: it would fail in the same way in shoestring train"
        )
        return failed(name, problem, hint)
    message = f"the trial stopped after {plural(len(trial.stages_named('update')), 'update')}: {trial.measured.problem}"
    hint = "choose a smaller micro_batch or model; if the system killed the process, it ran out of RAM"
    return failed(name, message, hint)


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
        time.measured_seconds (number): the measured seconds of an update without waiting for its data, and without the
            first update
        time.predicted_seconds (number or null): the prediction of the same
        time.low_seconds (number or null): its lower bound
        time.high_seconds (number or null): its upper bound
        time.ratio (number or null): the measured seconds divided by the predicted ones
    """
    updates, seconds = trial.last("updates"), trial.computing_seconds
    if updates is None or seconds is None:
        return None
    (low, predicted, high), measured_bytes = _predicted_memory(trial), int(updates["growth_bytes"])
    time = trial.plan.time
    return {
        "device": updates["device"],
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
    total, updates = trial.last("updates"), trial.stages_named("update")
    assert total
    loss = updates[0]["loss"] if updates[0]["loss"] is not None else total["loss"]
    message = (
        f"{plural(len(updates), 'update')} of {plural(trial.probe.samples, 'sample')} ran on {total['device']} with "
        f"{_settings_text(trial.plan)}"
    )
    if loss is not None and not math.isfinite(loss):
        hint = "check the data and loss() for values that are NaN or infinite"
        return failed("update", f"{message}; the first loss is {loss}", hint)
    planned = min(trial.plan.settings.micro_batch or trial.probe.samples, trial.probe.samples)
    if total["micro_batch"] < planned:
        message = f"{message} after an out-of-memory: micro_batch {total['micro_batch']} fitted"
        return warned("update", message, f"plan with --set micro_batch={total['micro_batch']}")
    return passed("update", message if loss is None else f"{message}; the first loss is {loss:.4g}")


def _check_evaluation(trial: Trial) -> list[Finding]:
    seconds, samples = trial.measured.evaluation_seconds_per_sample, trial.measured.evaluated_samples
    if seconds is None:
        return []
    message = f"{seconds_text(seconds)} per sample of the validation part ({plural(samples, 'sample')} evaluated)"
    if validation := (trial.plan.facts.samples or {}).get("validation"):
        message += f", {seconds_text(seconds * validation)} for all {count_text(validation)}"
    return [passed("evaluation", message)]


def _check_halves(trial: Trial) -> list[Finding]:
    hint = "whole_batch = True plans updates that are never split; see docs/guides/recipe.md"
    return [warned("microbatches", stage["difference"], hint) for stage in trial.stages_named("halves")]


def _check_memory(trial: Trial) -> Finding:
    low, predicted, high = _predicted_memory(trial)
    measured_bytes = int(trial.stages_named("updates")[0]["growth_bytes"])
    measured_text = bytes_text(measured_bytes)
    message = (
        f"the process grew by {measured_text}" if _is_on_cpu(trial) else f"torch reserved {measured_text} at the peak"
    )
    tolerance = 0
    if _is_on_cpu(trial):
        has_late_imports = trial.loaded.parts.learning.trainer or predicted <= _NON_TENSOR_BYTES
        tolerance = _TRAINER_BYTES if has_late_imports else _NON_TENSOR_BYTES
    is_too_much = measured_bytes > high + tolerance
    # The ratio of a small model's process would be one of what belongs to no tensor.
    ratio = _ratio_text(measured_bytes, predicted) if is_too_much or predicted > tolerance else ""
    message += f", predicted {bytes_text(predicted)} ({bytes_text(low)} to {bytes_text(high)}){ratio}"
    if tolerance:
        message += f"; up to {bytes_text(tolerance)} of it may not belong to tensors"
    if not ratio:
        message += ", so the model is too small to compare its memory"
    if is_too_much:
        hint = "leave a margin (a smaller micro_batch), and please report that the prediction was too low"
        return warned("memory", message, hint)
    return passed("memory", message)


def _check_time(trial: Trial) -> Finding:
    seconds, time = trial.computing_seconds, trial.plan.time
    if seconds is None:  # a run of one update, or an update that has taken all the time
        first_seconds = trial.stages_named("update")[0]["seconds"]
        message = f"the only update took {seconds_text(first_seconds)}, which includes one-time work"
        return passed("time", f"{message}; it is not compared with the prediction")
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
