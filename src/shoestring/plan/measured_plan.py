"""A plan with the time and memory that a probe has measured; what was predicted without it is kept beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shoestring.estimate.memory import Breakdown, MemoryPart
from shoestring.estimate.span import Span, total
from shoestring.plan.costs import COPY_SHARE
from shoestring.plan.limits import binding, limits
from shoestring.plan.measurement import Measurement, Prediction
from shoestring.plan.plan import Plan
from shoestring.plan.schedule import make_schedule
from shoestring.plan.sessions import Parts, Work
from shoestring.plan.shares import gpus_of
from shoestring.plan.times import PlannedTime
from shoestring.recipe.options import LoadedRecipe
from shoestring.settings import Settings
from shoestring.units import MIB, bytes_text, plural, seconds_text

UNEXPLAINED = "rest of the process"
COPY = "copy of the state for saving"
PLANNING = "planning in the same process"
WAITING = "waiting for data"
MEASURED = "measured before training"
_SOURCES = {
    UNEXPLAINED: "measured: what the other parts do not explain, such as libraries and the allocator's unused memory",
    PLANNING: "measured: what the process that plans and then trains has more in memory than a probe at its start",
    COPY: "the state in host memory while a checkpoint is written; the next save reuses its memory",
}
_ONCE_RANGE = (0.7, 1.5)
"""An assumption: factors between which what was measured once differs from what a run measures."""
_LATER_BYTES = 64 * MIB
"""An assumption: by how much a process grows that a few updates do not show, by libraries that are loaded late, threads
that save, and fragments of the allocator. A check allows as much."""
_DISTURBED = 0.02
"""The share of the time that threads waited for a processor from which on other processes have disturbed a probe."""
_LATER_SHARE = 0.02
"""Workspaces of unknown size, as a share of the reserved memory, which later updates may need on a GPU: an assumption,
that of the prediction."""


def with_measurement(
    plan: Plan, measured: Measurement, loaded: LoadedRecipe, requested: Settings, *, planning_seconds: float = 0.0
) -> Plan:
    """Return the plan of `loaded` with what was measured of it on the machine that it is for.

    On a CPU the measured time and memory replace the predicted ones, on a GPU the time does, and the high end of the
    memory is corrected. What was not measured, and all of it if fewer processes than planned were measured, remains as
    predicted. `planning_seconds` are those of the session that the plan and the probe have taken.
    """
    plan = replace(plan, measured=replace(measured, predicted=_prediction(plan)))
    if gpus_of(plan.settings) > measured.processes:
        return plan
    plan = replace(plan, memory=_memory(plan, measured, loaded), time=_time(plan, measured))
    plan = replace(plan, work=_work(plan, planning_seconds))
    bounds = limits(plan.memory, plan.disk, plan.host, plan.target, plan.work, plan.counts)
    schedule = make_schedule(
        loaded, requested, plan.target, counts=plan.counts, work=plan.work, with_commands=bool(plan.answers)
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
    return Prediction(
        update_seconds=time.predicted.update_seconds,
        low_update_seconds=time.low.update_seconds,
        high_update_seconds=time.high.update_seconds,
        peak_bytes=memory.peak_bytes,
        low_bytes=memory.low_bytes,
        high_bytes=memory.high_bytes,
    )


def _time(plan: Plan, measured: Measurement) -> PlannedTime:
    seconds, low, high = measured.update_seconds, measured.low_update_seconds, measured.high_update_seconds
    if seconds is None or low is None or high is None:
        return plan.time
    if measured.disturbed_share > _DISTURBED and plan.time.low.update_seconds:
        # Threads that wait for each other take many times as long if one of them waits for a processor, so the time
        # without the other processes cannot be computed from the time with them.
        low = min(low, plan.time.low.update_seconds)
    update = Span(seconds, low, high)
    return PlannedTime.from_update(
        update,
        _time_parts(plan.time.parts, update, measured.waiting_seconds or 0.0),
        plan.counts,
        evaluation_seconds=_evaluation_seconds(plan, measured),
        source=f"measured: {plural(measured.updates, 'update')} on this machine before training",
        calibration=plan.time.calibration,
    )


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
    planning = {"planning": Span.exactly(planning_seconds)} if planning_seconds else {}
    return replace(
        work,
        update=plan.time.parts,
        start=start,
        first={**work.first, **answers, **planning},
        epoch_end={**work.epoch_end, **evaluation(work.epoch_end, "validation"), **answers},
        last={**work.last, **evaluation(work.last, "test")},
        unknown=tuple(text for text in work.unknown if not _is_measured(text, measured)),
    )


def _scaled(parts: Parts, name: str, ratio: float) -> Parts:
    return {name: parts[name] * ratio} if name in parts else {}


def _is_measured(unknown: str, measured: Measurement) -> bool:
    """Return whether what a plan did not know has been measured."""
    values = {
        "evaluations": measured.evaluation_seconds_per_sample,
        "answers": measured.answers,
        WAITING: measured.waiting_seconds,
    }
    return any(unknown.startswith(name) and value is not None for name, value in values.items())


def _around(seconds: float) -> Span:
    low, high = _ONCE_RANGE
    return Span(seconds, seconds * low, seconds * high)


def _memory(plan: Plan, measured: Measurement, loaded: LoadedRecipe) -> Breakdown:
    if measured.peak_bytes is None:
        return plan.memory
    if plan.target.device.kind == "cpu":
        return _process_memory(plan.memory, measured.peak_bytes, measured)
    return _gpu_memory(plan.memory, measured.peak_bytes, lengths_vary=loaded.parts.length is not None)


def _process_memory(memory: Breakdown, measured_bytes: int, measured: Measurement) -> Breakdown:
    """Return the memory of a process on a CPU, which was measured without planning and saving.

    The peak has these two as well. The low end is not above the predicted one, since a system that lacks memory takes
    pages of files from a process. The high end adds by how much the peak still grew when the probe ended, and what a
    process loads later; that of a probe that was not complete is not less than the predicted one.
    """
    copy = round(COPY_SHARE * (measured.state_bytes or 0))
    peak_bytes = measured_bytes + measured.planning_bytes + copy
    high_bytes = peak_bytes + measured.growing_bytes + _LATER_BYTES
    return replace(
        memory,
        parts=(
            *_parts_of(memory.parts, measured_bytes),
            *_part(PLANNING, measured.planning_bytes),
            *_part(COPY, copy),
        ),
        low_bytes=min(memory.low_bytes, measured_bytes),
        high_bytes=max(high_bytes, memory.high_bytes) if measured.problem else high_bytes,
        loading_bytes=min(memory.loading_bytes, peak_bytes),
    )


def _parts_of(parts: Sequence[MemoryPart], total: int) -> tuple[MemoryPart, ...]:
    """Return the parts with a rest that explains the total; smaller in proportion if their sum exceeds it."""
    predicted = sum(part.bytes for part in parts)
    if predicted > total:
        parts = tuple(replace(part, bytes=part.bytes * total // predicted) for part in parts)
    return (*parts, *_part(UNEXPLAINED, total - sum(part.bytes for part in parts)))


def _part(name: str, size: int) -> tuple[MemoryPart, ...]:
    return (MemoryPart(name=name, bytes=size, source=_SOURCES[name]),) if size else ()


def _gpu_memory(memory: Breakdown, reserved_bytes: int, *, lengths_vary: bool) -> Breakdown:
    """Return the memory of a GPU with another high end.

    Memory that was reserved shows that a lower end was wrong. That less was reserved shows something only if all
    updates have the shapes of the first ones.
    """
    predicted = memory.reserved
    later_bytes = reserved_bytes + round(_LATER_SHARE * reserved_bytes)
    high = predicted.high
    if reserved_bytes > predicted.high:
        high = later_bytes
    elif not lengths_vary:
        high = min(predicted.high, max(predicted.value, later_bytes))
    outside = memory.high_bytes - predicted.high
    return replace(
        memory,
        high_bytes=max(memory.peak_bytes, high + outside),
        reserved=replace(predicted, high=high),
    )
