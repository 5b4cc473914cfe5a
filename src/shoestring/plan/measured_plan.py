"""A plan with the time and memory that a probe has measured; what was predicted without it is kept beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shoestring.estimate.memory import Breakdown, MemoryPart
from shoestring.plan.costs import COPY_SHARE, Duration, PlannedTime
from shoestring.plan.limits import Limit, binding
from shoestring.plan.measurement import Measurement, Prediction
from shoestring.plan.plan import Plan
from shoestring.plan.sessions import PlannedSession, sessions, shortest_session_seconds, weeks
from shoestring.plan.shares import gpus_of
from shoestring.recipe.contract import updates_per_epoch
from shoestring.recipe.options import LoadedRecipe
from shoestring.units import bytes_text, plural, seconds_text

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
_LATER_SHARE = 0.02
"""Workspaces of unknown size, as a share of the reserved memory, which later updates may need on a GPU: an assumption,
that of the prediction."""


def with_measurement(plan: Plan, measured: Measurement, loaded: LoadedRecipe) -> Plan:
    """Return the plan of `loaded` with what was measured of it on the machine that it is for.

    On a CPU the measured time and memory replace the predicted ones, on a GPU the time does, and the high end of the
    memory is corrected. What was not measured, and all of it if fewer processes than planned were measured, remains as
    predicted.
    """
    plan = replace(plan, measured=replace(measured, predicted=_prediction(plan)))
    if gpus_of(plan.settings) > measured.processes:
        return plan
    plan = replace(plan, memory=_memory(plan, measured, loaded), time=_time(plan, measured, loaded))
    bounds = [_limit(limit, plan) for limit in plan.limits]
    planned_sessions = _sessions(plan, loaded)
    platform = plan.target.platform
    return replace(
        plan,
        verdict=plan.verdict if all(limit.holds for limit in bounds) else "does not fit",
        sessions=planned_sessions,
        weeks=tuple(weeks(planned_sessions, platform.weekly_gpu_hours if platform else None)),
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


def _time(plan: Plan, measured: Measurement, loaded: LoadedRecipe) -> PlannedTime:
    seconds, low, high = measured.update_seconds, measured.low_update_seconds, measured.high_update_seconds
    if seconds is None or low is None or high is None:
        return plan.time
    predicted = plan.time.predicted.update_seconds
    per_epoch, total = _updates(plan, loaded)

    def duration(update_seconds: float) -> Duration:
        return Duration(
            update_seconds=update_seconds,
            epoch_seconds=update_seconds * per_epoch if per_epoch else None,
            total_seconds=update_seconds * total if total else None,
        )

    evaluation = plan.time.evaluation_seconds
    if measured.evaluation_seconds_per_sample is not None:
        evaluation = measured.evaluation_seconds_per_sample * (plan.facts.samples or {}).get("validation", 0)
    elif evaluation is not None and predicted:
        evaluation *= seconds / predicted  # the same rates were assumed for both
    return PlannedTime(
        predicted=duration(seconds),
        low=duration(low),
        high=duration(high),
        parts=_time_parts(plan.time.parts, seconds, measured.waiting_seconds or 0.0),
        evaluation_seconds=evaluation,
        source=f"measured: {plural(measured.updates, 'update')} on this machine before training",
        calibration=plan.time.calibration,
    )


def _time_parts(predicted: Mapping[str, float], seconds: float, waiting_seconds: float) -> dict[str, float]:
    """Return parts that sum to `seconds`: the waiting, which was measured, and the rest as it was predicted to be
    divided.
    """
    waiting_seconds = min(waiting_seconds, seconds)
    computing = sum(predicted.values())
    shares = {name: part / computing for name, part in predicted.items()} if computing else {"computing": 1.0}
    waiting = {WAITING: waiting_seconds} if waiting_seconds else {}
    return {**{name: share * (seconds - waiting_seconds) for name, share in shares.items()}, **waiting}


def _updates(plan: Plan, loaded: LoadedRecipe) -> tuple[int | None, int | None]:
    """Return the updates of an epoch and of the run; None without data."""
    if not plan.facts.samples:
        return None, None
    per_epoch = updates_per_epoch(plan.facts.samples["train"], loaded.effective_batch)
    return per_epoch, loaded.total_updates(per_epoch)


def _memory(plan: Plan, measured: Measurement, loaded: LoadedRecipe) -> Breakdown:
    if measured.peak_bytes is None:
        return plan.memory
    if plan.target.device.kind == "cpu":
        return _process_memory(plan.memory, measured.peak_bytes, measured)
    return _gpu_memory(plan.memory, measured.peak_bytes, lengths_vary=loaded.parts.length is not None)


def _process_memory(memory: Breakdown, measured_bytes: int, measured: Measurement) -> Breakdown:
    """Return the memory of a process on a CPU, which was measured without planning and saving.

    The low end is what was measured, and the peak has these two as well. The high end adds by how much the peak still
    grew when the probe ended. That of a probe that was not complete is not less than the predicted one.
    """
    copy = round(COPY_SHARE * (measured.state_bytes or 0))
    peak_bytes = measured_bytes + measured.planning_bytes + copy
    high_bytes = peak_bytes + measured.growing_bytes
    return replace(
        memory,
        parts=(
            *_parts_of(memory.parts, measured_bytes),
            *_part(PLANNING, measured.planning_bytes),
            *_part(COPY, copy),
        ),
        low_bytes=measured_bytes,
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


def _limit(limit: Limit, plan: Plan) -> Limit:
    """Return a limit of the plan with what the run needs now."""
    if limit.kind == "memory":
        high_bytes = plan.memory.high_bytes
        return replace(limit, needs=high_bytes, enough=f"a device with {bytes_text(high_bytes)} of memory")
    seconds = plan.time.predicted.update_seconds
    if limit.kind != "session" or seconds is None:
        return limit
    # One update with its share of an epoch's evaluation, as `limits` computes it.
    per_epoch = plan.time.predicted.epoch_seconds
    evaluation = (plan.time.evaluation_seconds or 0.0) * seconds / per_epoch if per_epoch else 0.0
    needs = shortest_session_seconds(seconds + evaluation, plan.disk.full_checkpoint_bytes)
    return replace(limit, needs=needs, enough=limit.enough.replace(limit.text(limit.needs), limit.text(needs)))


def _sessions(plan: Plan, loaded: LoadedRecipe) -> tuple[PlannedSession, ...]:
    """Return the sessions of the run with the time of the plan, as `make_plan` computes them."""
    per_epoch, total = _updates(plan, loaded)
    seconds, platform = plan.time.predicted.update_seconds, plan.target.platform
    if not per_epoch or not total or seconds is None:
        return plan.sessions
    planned = sessions(
        total_updates=total,
        updates_per_epoch=per_epoch,
        update_seconds=seconds,
        session_hours=platform.session_hours if platform else None,
        weekly_hours=platform.weekly_gpu_hours if platform else None,
        evaluation_seconds=plan.time.evaluation_seconds or 0.0,
        save_bytes=plan.disk.full_checkpoint_bytes,
    )
    return tuple(planned or ())
