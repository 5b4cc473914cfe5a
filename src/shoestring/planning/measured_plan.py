"""A plan with the time and memory that a probe has measured; what was predicted without it is kept beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shoestring.base.settings import Settings
from shoestring.base.units import bytes_text, plural, seconds_text
from shoestring.planning.estimate.memory import Breakdown, Range
from shoestring.planning.estimate.span import Span, total
from shoestring.planning.limits import binding, limits
from shoestring.planning.measured_memory import corrected_memory
from shoestring.planning.measurement import Measurement, Prediction
from shoestring.planning.plan import Plan
from shoestring.planning.schedule import make_schedule
from shoestring.planning.sessions import WAITING, Parts, Work
from shoestring.planning.times import PlannedTime
from shoestring.recipe.options import LoadedRecipe

MEASURED = "measured before training"
_ONCE_RANGE = (0.7, 1.5)
"""An assumption: factors between which what was measured once differs from what a run measures."""
_OTHER_PROCESS = (0.9, 1.1)
"""An assumption: factors between which the same update takes longer or shorter in the process that trains."""
_DISTURBED = 0.02
"""The share of the time that threads waited for a processor from which on other processes have disturbed a probe."""


def with_measurement(
    plan: Plan, measured: Measurement, loaded: LoadedRecipe, requested: Settings, *, planning_seconds: float = 0.0
) -> Plan:
    """Return the plan of `loaded` with what was measured of it on the machine that it is for.

    On a CPU the measured time and memory replace the predicted ones, on a GPU the time does, and the high end of the
    memory is corrected. What was not measured, and all of it if fewer processes than planned were measured, remains as
    predicted. `planning_seconds` are those of the session that the plan and the probe have taken.
    """
    plan = replace(plan, measured=replace(measured, predicted=_prediction(plan)))
    if plan.settings.processes > measured.processes:
        return plan
    plan = replace(plan, memory=_memory(plan, measured, loaded), time=_time(plan, measured))
    plan = replace(plan, work=_work(plan, planning_seconds))
    bounds = limits(plan.memory, plan.disk, plan.host, plan.target, plan.work, plan.counts)
    schedule = make_schedule(
        loaded,
        requested,
        plan.target,
        counts=plan.counts,
        work=plan.work,
        with_commands=bool(plan.answers),
        update_seconds=plan.measured.predicted.update_seconds if plan.measured and plan.measured.predicted else None,
        proposed=plan.proposals,
    )
    return replace(
        plan,
        verdict=plan.verdict if all(limit.holds for limit in bounds) else "does not fit",
        sessions=schedule.sessions,
        weeks=schedule.weeks,
        answers=schedule.answers,
        phases=schedule.phases,
        limits=tuple(bounds),
        binding=binding(bounds),
        reasons=(*plan.reasons, f"{MEASURED}: {describe(plan.measured)}") if plan.measured else plan.reasons,
    )


def describe(measured: Measurement) -> str:
    """Return what was measured, beside what was predicted."""
    texts = []
    predicted = measured.predicted
    if measured.update_seconds is not None:
        texts.append(
            f"{seconds_text(measured.update_seconds)} per update in {plural(measured.updates, 'update')}"
            + (_predicted_time(predicted) if predicted else "")
        )
    if measured.peak_bytes is not None:
        texts.append(
            f"{bytes_text(measured.peak_bytes)} of memory"
            + (
                f" (predicted {bytes_text(predicted.peak_bytes)}, {bytes_text(predicted.low_bytes)} to "
                f"{bytes_text(predicted.high_bytes)})"
                if predicted
                else ""
            )
        )
    problem = f"not complete: {measured.problem}" if texts else f"nothing: {measured.problem}"
    return "; ".join([*texts, *([problem] if measured.problem else []), *measured.notes])


def _predicted_time(predicted: Prediction) -> str:
    low, seconds, high = predicted.low_update_seconds, predicted.update_seconds, predicted.high_update_seconds
    if low is None or seconds is None or high is None:
        return ""
    return f" (predicted {seconds_text(seconds)}, {seconds_text(low)} to {seconds_text(high)})"


def _prediction(plan: Plan) -> Prediction:
    time, memory = plan.time, plan.memory
    # On a GPU torch's allocator is measured, without the CUDA context.
    is_cpu = plan.target.device.kind == "cpu"
    bytes_range = Range(memory.low_bytes, memory.peak_bytes, memory.high_bytes) if is_cpu else memory.reserved
    return Prediction(
        update_seconds=time.predicted.update_seconds,
        low_update_seconds=time.low.update_seconds,
        high_update_seconds=time.high.update_seconds,
        peak_bytes=bytes_range.value,
        low_bytes=bytes_range.low,
        high_bytes=bytes_range.high,
    )


def _memory(plan: Plan, measured: Measurement, loaded: LoadedRecipe) -> Breakdown:
    lengths_vary = loaded.parts.data.length is not None
    return corrected_memory(plan.memory, measured, plan.target.device.kind, lengths_vary=lengths_vary)


def _time(plan: Plan, measured: Measurement) -> PlannedTime:
    seconds, low, high = measured.update_seconds, measured.low_update_seconds, measured.high_update_seconds
    if seconds is None or low is None or high is None:
        return plan.time
    if measured.disturbed_share > _DISTURBED and plan.time.low.update_seconds:
        # Threads that wait for each other take many times as long if one of them waits for a processor, so the time
        # without the other processes cannot be computed from the time with them.
        low = min(low, plan.time.low.update_seconds)
    waiting_seconds, saved_seconds = _waiting(measured, plan.counts.epochs)
    # Later epochs may be faster than the one that was measured, but are so only if the data stay in memory.
    share = saved_seconds / seconds if seconds else 0.0
    lower, higher = _OTHER_PROCESS
    update = Span(seconds * (1 - share), low * (1 - share) * lower, high * higher)
    return PlannedTime.from_update(
        update,
        _time_parts(plan.time.parts, update, waiting_seconds - saved_seconds),
        plan.counts,
        evaluation_seconds=_evaluation_seconds(plan, measured),
        source=f"measured: {plural(measured.updates, 'update')} on this machine before training",
        calibration=plan.time.calibration,
    )


def _waiting(measured: Measurement, epochs: float) -> tuple[float, float]:
    """Return how long an update of the first epoch waits for data, and by how much less the mean over all epochs.

    A recipe or the system may have samples in memory that were loaded before.
    """
    first, repeated = measured.waiting_seconds or 0.0, measured.repeated_waiting_seconds
    if repeated is None or repeated >= first or epochs <= 1:
        return first, 0.0
    return first, (first - repeated) * (1 - 1 / epochs)


def _evaluation_seconds(plan: Plan, measured: Measurement) -> float | None:
    """Return the seconds of an evaluation of the validation data."""
    predicted = plan.time.predicted.update_seconds
    if measured.evaluation_seconds_per_sample is not None:
        return measured.evaluation_seconds_per_sample * plan.counts.samples.get("validation", 0)
    if plan.time.evaluation_seconds is None or not predicted or not measured.update_seconds:
        return plan.time.evaluation_seconds
    return plan.time.evaluation_seconds * measured.update_seconds / predicted  # the same rates were assumed for both


def _time_parts(predicted: Mapping[str, Span], update: Span, waiting_seconds: float) -> dict[str, Span]:
    """Return parts that sum to the update: the waiting, which was measured, and the rest as it was predicted to be
    divided.
    """
    waiting_seconds = min(waiting_seconds, update.seconds)
    computing = total(predicted.values()).seconds
    waiting = waiting_seconds / update.seconds if update.seconds else 0.0
    shares = {name: part.seconds / computing for name, part in predicted.items()} if computing else {"computing": 1.0}
    parts = {name: update * (share * (1 - waiting)) for name, share in shares.items()}
    return {**parts, WAITING: update * waiting} if waiting else parts


def _work(plan: Plan, planning_seconds: float) -> Work | None:
    """Return what the run does with the durations that were measured.

    What was not measured takes as much longer or shorter than predicted as the updates, since the same rates were
    assumed for both.
    """
    measured = plan.measured
    assert measured
    work, update = plan.work, measured.update_seconds
    if update is None:
        return work
    if work is None:
        work = Work(update=plan.time.parts)
    predicted = measured.predicted.update_seconds if measured.predicted else None
    ratio = update / predicted if predicted else 1.0
    answers = _scaled(work.first, "answers", ratio)
    if measured.answer_seconds is not None and measured.answers is not None:
        answers = {"answers": _around(measured.answer_seconds * measured.answers)}

    def evaluation(parts: Parts, name: str) -> Parts:
        seconds, samples = measured.evaluation_seconds_per_sample, plan.counts.samples.get(name)
        if seconds is None or not samples:
            return _scaled(parts, "evaluation", ratio)
        return {"evaluation": _around(seconds * samples)}

    start = dict(work.start)
    if measured.start_seconds is not None:
        start["starting"] = _around(measured.start_seconds)
    if measured.first_update_seconds is not None:
        start["first update"] = _around(max(0.0, measured.first_update_seconds - update))
    planning = {}
    if planning_seconds:
        planning = {"planning": Span.exactly(planning_seconds)}
    elif "planning" in work.first:  # training will probe again
        planning = {"planning": work.first["planning"] + _around(measured.seconds)}
    return replace(
        work,
        update=plan.time.parts,
        start=start,
        first={**work.first, **answers, **planning},
        epoch_end={**work.epoch_end, **evaluation(work.epoch_end, "validation"), **answers},
        last={**work.last, **evaluation(work.last, "test")},
        unknown={name: text for name, text in work.unknown.items() if not _is_measured(name, measured)},
    )


def _scaled(parts: Parts, name: str, ratio: float) -> Parts:
    return {name: parts[name] * ratio} if name in parts else {}


def _is_measured(name: str, measured: Measurement) -> bool:
    """Return whether what a plan did not know has been measured."""
    values = {
        "evaluations": measured.evaluation_seconds_per_sample,
        "answers": measured.answers,
        WAITING: measured.waiting_seconds,
    }
    return values.get(name) is not None


def _around(seconds: float) -> Span:
    low, high = _ONCE_RANGE
    return Span(seconds, seconds * low, seconds * high)
