"""The measurement of a probe, computed from the stages that its child process has reported."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from shoestring.planning.measurement import Measurement

Stage = Mapping[str, Any]

_OUTLIERS_FROM = 5
"""Of so many updates or more, the fastest and the slowest are not the range: other processes slow one down."""


def measurement(stages: Sequence[Stage], *, exit_reason: str, device: str, scale: float = 1.0) -> Measurement:
    """Return what the stages show.

    `exit_reason` is how the process failed; empty if it did not. The updates had the `scale`th part of the samples of
    the run's updates.
    """
    data, model, total, evaluation, answer = (
        _last(stages, name) for name in ("data", "model", "updates", "evaluation", "answer")
    )
    updates = [stage for stage in stages if stage["stage"] == "update" and stage["purpose"] != "later"]
    low, middle, high = (None, None, None)
    measured = [stage for stage in updates[1:] if not stage["purpose"]]
    if measured:
        low, middle, high = _range(measured, (model or {}).get("mean_length"), scale)
    waiting = [stage["waiting_seconds"] for stage in measured if stage["waiting_seconds"] is not None]
    repeated = [stage["waiting_seconds"] for stage in stages if stage.get("purpose") == "later"]
    peaks = [stage for stage in stages if "host_bytes" in stage]
    seconds_per_sample, samples = _evaluation(evaluation)
    return Measurement(
        device=total["device"] if total else device,
        micro_batch=total["micro_batch"] if total else None,
        updates=len(measured),
        update_seconds=middle,
        low_update_seconds=low,
        high_update_seconds=high,
        disturbed_share=fmean(stage["disturbed_share"] for stage in measured) if measured else 0.0,
        first_update_seconds=scale * updates[0]["seconds"] if updates else None,
        waiting_seconds=scale * fmean(waiting) if waiting else None,
        # The first one of them has begun to load when it was needed, the others while the update before was made.
        repeated_waiting_seconds=scale * repeated[-1] if len(repeated) > 1 else None,
        start_seconds=model["seconds"] if model else None,
        data_seconds=data["seconds"] if data else None,
        peak_bytes=max((stage["bytes"] for stage in peaks), default=None),
        host_peak_bytes=max((stage["host_bytes"] for stage in peaks), default=None),
        growing_bytes=_growing_bytes(stages, updates),
        state_bytes=total["state_bytes"] if total else None,
        evaluation_seconds_per_sample=seconds_per_sample,
        evaluated_samples=samples,
        answer_seconds=answer["seconds"] if answer else None,
        answers=answer["count"] if answer and answer["is_complete"] else None,
        problem=_problem(stages, exit_reason),
    )


def _range(updates: Sequence[Stage], mean_length: float | None, scale: float) -> tuple[float, float, float]:
    """Return (low, typical, high) seconds of an update of the mean length.

    If other processes had the processors for a part of the time, the run may have them alone, or as much less again.
    """
    by_stage: dict[int, list[tuple[float, float]]] = {}
    for update in updates:
        factor = mean_length / update["length"] if mean_length and update["length"] else 1.0
        duration = scale * factor * update["seconds"], 1 - update["disturbed_share"]
        by_stage.setdefault(update["loss_stage"], []).append(duration)
    # Stages of a loss take turns, and a prediction is the mean over them.
    return (
        fmean(_quantile([seconds * share for seconds, share in values], low=True) for values in by_stage.values()),
        fmean(median(seconds for seconds, _ in values) for values in by_stage.values()),
        fmean(_quantile([seconds / share for seconds, share in values], low=False) for values in by_stage.values()),
    )


def _quantile(values: Sequence[float], *, low: bool) -> float:
    """Return the least or the greatest value, of many without the outermost one."""
    ordered, skipped = sorted(values), len(values) >= _OUTLIERS_FROM
    return ordered[skipped] if low else ordered[-1 - skipped]


def _growing_bytes(stages: Sequence[Stage], updates: Sequence[Stage]) -> int:
    """Return by how much the peak of the process still grew when the probe ended.

    That is the growth in the second half of the updates, and in those after an evaluation. If there are none, the
    memory that the evaluation has left is beside what the later updates of the run need.
    """
    grown = updates[-1]["host_bytes"] - updates[len(updates) // 2]["host_bytes"] if updates else 0
    later = [stage["host_bytes"] for stage in stages if stage["stage"] == "update" and stage["purpose"] == "later"]
    evaluated = _last(stages, "evaluation")
    if later:
        grown = max(grown, later[-1] - later[0])
    elif evaluated:
        before = updates[-1]["host_bytes"] if updates else 0
        grown += max(0, before + evaluated["left_bytes"] - evaluated["host_bytes"])
    return grown


def _evaluation(stage: Stage | None) -> tuple[float | None, int]:
    """Return the seconds of a sample, without the first piece if there is another one, and the samples."""
    if stage is None or not sum(stage["samples"]):
        return None, 0
    first = 1 if len(stage["samples"]) > 1 else 0
    samples = sum(stage["samples"][first:])
    return sum(stage["seconds"][first:]) / samples, samples


def _problem(stages: Sequence[Stage], exit_reason: str) -> str:
    """Return why the probe is not complete; empty if it is."""
    if error := _last(stages, "error"):
        return f"{error['during']} fails: {error['message']}"
    if _last(stages, "done"):
        return ""
    reached = stages[-1]["stage"] if stages else "nothing"
    return f"{exit_reason or 'the process ended'} (the last stage that it reported: {reached})"


def _last(stages: Sequence[Stage], name: str) -> Stage | None:
    return next((stage for stage in reversed(stages) if stage["stage"] == name), None)
