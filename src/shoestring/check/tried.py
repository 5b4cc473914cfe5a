"""What a few updates measured here, beside what was predicted for this machine."""

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoestring import config
from shoestring.check.facts import Facts
from shoestring.check.finding import Finding, failed, passed, warned
from shoestring.errors import ShoestringError
from shoestring.hardware.catalog import Target
from shoestring.plan.plan import Plan, make_plan
from shoestring.recipe.options import LoadedRecipe
from shoestring.settings import Settings
from shoestring.units import MIB, bytes_text, count_text, seconds_text

SECONDS = 120.0
"""That the updates may take with starting, before they are given up."""
_UPDATE_SECONDS = 5.0
"""An update that is predicted to take longer is tried with fewer samples."""
_NOISE = 64 * MIB
"""By which a process may grow without a tensor: code that is loaded late, the allocator's pieces."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What is tried, and what was predicted of it."""

    plan: Plan
    loaded: LoadedRecipe
    stages: tuple[dict[str, Any], ...]
    """As the child told them."""
    ended: str = ""
    """How the child ended, where it did not by itself."""

    def stage(self, name: str) -> list[dict[str, Any]]:
        return [stage for stage in self.stages if stage["stage"] == name]


def planned(loaded: LoadedRecipe, target: Target, wanted: Settings, facts: Facts) -> tuple[Plan | None, list[Finding]]:
    """The plan for this machine, and whether it has room for it; None where there is none to go by."""
    try:
        plan = make_plan(loaded, target, wanted)
    except ShoestringError as error:
        problems = "; ".join((error.message, *error.problems[:5]))
        return None, [failed("plan", problems, error.hint or "shoestring plan says the same")]
    if not plan.fits:
        hint = "smaller options of the recipe (size=tiny, where it has that); shoestring plan says what would fit"
        return None, [failed("plan", "; ".join(plan.reasons), hint)]
    return plan, [passed("plan", f"fits {target.device.title} with {_settings(plan)}"), *room(plan, facts)]


def room(plan: Plan, facts: Facts) -> list[Finding]:
    """Whether there is as much room now as the plan counts on."""
    found = []
    free = facts.disk.free_bytes + facts.disk.used_bytes
    need = plan.disk.peak_bytes
    said = f"the run takes up to {bytes_text(need)}, {bytes_text(free)} are free as claimed"
    found.append(
        passed("room on disk", said)
        if need <= free
        else failed("room on disk", said, "free space, or another place for the run: --run DIR")
    )
    cards = [card for card in facts.driver.cards if card.shown] if facts.driver else []
    if cards and facts.on.name != "cpu":
        free, need = cards[0].free_bytes, plan.memory.high_bytes
        if need > free:
            said = f"the plan counts on up to {bytes_text(need)}, of which {bytes_text(free)} are free"
            found.append(failed("room on the GPU", said, "end who holds it (see GPU memory), or a smaller micro_batch"))
    return found


def smaller(plan: Plan, loaded: LoadedRecipe) -> tuple[int, int]:
    """(effective batch, microbatch) that a few updates can be tried with in a few seconds."""
    whole = loaded.effective_batch
    micro = min(plan.settings.micro_batch or whole, whole)
    seconds = plan.time.predicted.update_seconds
    if seconds is None:
        return micro, micro
    if seconds <= _UPDATE_SECONDS:
        return whole, micro
    least = 2 if plan.facts.batch_norm else 1
    samples = min(whole, max(least, int(whole * _UPDATE_SECONDS / seconds)))
    return samples, min(micro, samples)


def attempt(plan: Plan, loaded: LoadedRecipe, target: Target, *, seconds: float = SECONDS) -> Trial:
    """Try a few updates of `plan`, or of a smaller one of the same recipe where it would take long.

    Raises ShoestringError where the smaller one cannot be planned.
    """
    samples, micro = smaller(plan, loaded)
    if samples < loaded.effective_batch:
        loaded = loaded.replace(effective_batch=samples)
        plan = make_plan(loaded, target, plan.settings.replace(micro_batch=micro))
    question = {
        "reference": loaded.reference,
        "options": config.as_json(loaded.options),
        "settings": plan.settings.json(),
        "microbatches": _equal(samples, micro),
        "device": target.device.kind,
    }
    command = [sys.executable, "-m", "shoestring.check.trial"]
    try:
        ended = subprocess.run(
            command, input=json.dumps(question), capture_output=True, text=True, timeout=seconds, check=False
        )
        answers, end = ended.stdout, _end(ended.returncode, ended.stderr)
    except subprocess.TimeoutExpired as late:
        told = late.stdout or ""
        answers = told.decode() if isinstance(told, bytes) else told
        end = f"it was not done after {seconds_text(seconds)}"
    lines = [line for line in answers.splitlines() if line.endswith("}")]
    return Trial(plan=plan, loaded=loaded, stages=tuple(map(json.loads, lines)), ended=end)


def judged(trial: Trial) -> list[Finding]:
    """The lines that a trial gives."""
    data = trial.stage("data")
    found = [
        passed("data", f"{count_text(each['samples'])} samples to train on, the first read after "
               f"{seconds_text(each['seconds'])}")
        for each in data
    ]  # fmt: skip
    for error in trial.stage("error"):
        what = "out of memory" if error["memory"] else "an update does not run here"
        hint = error["hint"] or ("a smaller micro_batch, or options for shorter samples" if error["memory"] else
                                 "the recipe fails likewise in: shoestring train")  # fmt: skip
        return [*found, failed("update", f"{what}: {error['message']}", hint)]
    if not trial.stage("done"):
        done = len(trial.stage("update"))
        reached = trial.stages[-1]["stage"] if trial.stages else "start"
        said = f"after {done} updates ({reached}): {trial.ended or 'the process ended'}"
        return [*found, failed("update", said, "a smaller micro_batch or model; if the system killed it, RAM ran out")]
    return [*found, _updates(trial), _memory(trial), _time(trial)]


def measured(trial: Trial) -> dict[str, Any] | None:
    """The numbers of a trial as JSON; None where it did not come to its end."""
    done = trial.stage("done")
    if not done:
        return None
    (low, predicted, high), bytes_ = _predicted_memory(trial), int(done[0]["bytes"])
    time, seconds = trial.plan.time, _seconds(trial)
    return {
        "device": done[0]["device"],
        "settings": trial.plan.settings.json(),
        "effective_batch": trial.loaded.effective_batch,
        "memory": {
            "what": _what(trial),
            "measured_bytes": bytes_,
            "predicted_bytes": predicted,
            "low_bytes": low,
            "high_bytes": high,
            "ratio": bytes_ / predicted if predicted else None,
        },
        "time": {
            "measured_seconds": seconds,
            "predicted_seconds": time.predicted.update_seconds,
            "low_seconds": time.low.update_seconds,
            "high_seconds": time.high.update_seconds,
            "ratio": seconds / time.predicted.update_seconds if time.predicted.update_seconds else None,
        },
    }


def _updates(trial: Trial) -> Finding:
    losses = [float(stage["loss"]) for stage in trial.stage("update")]
    device = trial.stage("done")[0]["device"]
    said = (
        f"{len(losses)} updates of {trial.loaded.effective_batch} samples ran on {device} with {_settings(trial.plan)}"
    )
    if not math.isfinite(losses[0]):
        return failed(
            "update", f"{said}; the first loss is {losses[0]}", "check the data and loss() for numbers that are none"
        )
    return passed("update", f"{said}; the first loss is {losses[0]:.4g}")


def _memory(trial: Trial) -> Finding:
    low, predicted, high = _predicted_memory(trial)
    bytes_ = int(trial.stage("done")[0]["bytes"])
    said = (
        f"{bytes_text(bytes_)} {_what(trial)}, predicted {bytes_text(predicted)} "
        f"({bytes_text(low)} to {bytes_text(high)}){_ratio(bytes_, predicted)}"
    )
    noise = _NOISE if trial.plan.target.device.kind == "cpu" else 0
    if noise:
        said += f"; up to {bytes_text(noise)} of it are no tensors"
    if bytes_ > high + noise:
        return warned("memory", said, "more than predicted: leave a margin (a smaller micro_batch); please report it")
    return passed("memory", said)


def _time(trial: Trial) -> Finding:
    seconds, time = _seconds(trial), trial.plan.time
    predicted, low, high = (each.update_seconds for each in (time.predicted, time.low, time.high))
    if predicted is None or low is None or high is None:
        return passed("time", f"{seconds_text(seconds)} an update; nobody knows this device's rates to predict it")
    said = (
        f"{seconds_text(seconds)} an update, predicted {seconds_text(predicted)} "
        f"({seconds_text(low)} to {seconds_text(high)}){_ratio(seconds, predicted)}"
    )
    if low <= seconds <= high:
        return passed("time", said)
    return warned("time", said, "go by what is measured; a busy machine is slower")


def _seconds(trial: Trial) -> float:
    """Of an update, the first left out: it has real data, and what happens once."""
    return statistics.median(float(stage["seconds"]) for stage in trial.stage("update")[1:])


def _predicted_memory(trial: Trial) -> tuple[int, int, int]:
    """(low, predicted, high) of what was measured: what torch reserves on a GPU, tensors on a CPU."""
    memory = trial.plan.memory
    known = memory.allocated if trial.plan.target.device.kind == "cpu" else memory.reserved
    return known.low, known.value, known.high


def _what(trial: Trial) -> str:
    cpu = trial.plan.target.device.kind == "cpu"
    return "the process grew by" if cpu else "reserved by torch at the peak"


def _ratio(measured_: float, predicted: float) -> str:
    return f", ratio {measured_ / predicted:.2f}" if predicted else ""


def _settings(plan: Plan) -> str:
    return f"micro_batch {plan.settings.micro_batch}, {plan.settings.precision}"


def _equal(samples: int, most: int) -> Sequence[int]:
    """`samples` in microbatches of at most `most`, as equal as possible."""
    pieces = -(-samples // most)
    return [samples // pieces + (number < samples % pieces) for number in range(pieces)]


def _end(status: int, talk: str) -> str:
    if status == 0:
        return ""
    if status == -9:
        return "the system killed it, as it does where RAM ran out"
    last = (talk.strip().splitlines() or ["it said nothing"])[-1][:300]
    return f"it ended with status {status}: {last}"
