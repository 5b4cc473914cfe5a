"""Work that cannot be paused: whether its remaining part fits into this session, and all of it into any session."""

from collections.abc import Iterator
from typing import TypeVar

from shoestring.base.errors import RunError
from shoestring.base.units import count_text, seconds_text
from shoestring.training.session.deadline import Deadline
from shoestring.training.session.stop import SessionOver, Stop

T = TypeVar("T")
_MIN_MEASURED_SHARE = 0.05  # the share of the work that must be measured before its speed is used


def poll_deadline(stop: Stop, kind: str, pieces: Iterator[tuple[T, int]], samples: int) -> Iterator[tuple[T, int]]:
    """Yield `pieces`, pairs of (item, number of samples) with `samples` samples in total, as long as they fit.

    Raises SessionOver before the first piece if earlier work of this `kind` was too slow for the remaining time, and
    later if this work is too slow or the session must stop. If even a whole session is too short for the work, the
    SessionOver has a RunError, because the work would start again in every session.
    """
    deadline = stop.deadline
    if seconds_per_sample := deadline.seconds_per_sample.get(kind):
        _require_fit(deadline, kind, samples, samples, seconds_per_sample)
    warmup_end = 0.0
    warmup_samples = completed = 0
    for piece, size in pieces:
        measured = completed - warmup_samples
        if measured > 0 and (measured >= _MIN_MEASURED_SHARE * samples or deadline.reached()):
            deadline.seconds_per_sample[kind] = (deadline.elapsed() - warmup_end) / measured
            _require_fit(deadline, kind, samples, samples - completed, deadline.seconds_per_sample[kind])
        stop.check()
        with deadline.measure(f"{kind} batch"):
            yield piece, size
            deadline.samples[kind] += size
        completed += size
        if not warmup_samples:
            # The first piece includes one-time work: the choice of kernels, the allocation of memory.
            warmup_end, warmup_samples = deadline.elapsed(), completed


def _require_fit(
    deadline: Deadline, kind: str, samples: int, remaining_samples: int, seconds_per_sample: float
) -> None:
    """Raise SessionOver if `remaining_samples` of the `samples` do not fit into the session any more."""
    remaining, limit, stopping = deadline.remaining(), deadline.limit_seconds, deadline.stopping_seconds()
    if remaining is None or limit is None or remaining_samples * seconds_per_sample <= remaining - stopping:
        return
    total, available = samples * seconds_per_sample, max(0.0, limit - stopping - (deadline.startup_seconds or 0.0))
    reason = (
        f"{deadline.limit_text()}: the {kind} takes {seconds_text(remaining_samples * seconds_per_sample)} more, "
        f"but only {seconds_text(max(0.0, remaining - stopping))} of the session remain"
    )
    error = RunError(
        f"the {kind} of {count_text(samples)} samples takes {seconds_text(total)} "
        f"({seconds_text(seconds_per_sample)} a sample), but a session of {seconds_text(limit)} has only "
        f"{seconds_text(available)} for it, and the {kind} cannot be continued in the next session",
        hint="give the session more time (--limit), or evaluate on fewer samples",
    )
    raise SessionOver(reason, None if total <= available else error)
