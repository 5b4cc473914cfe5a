"""Work that cannot be paused: whether what is left of it still fits into this session, and whether into any."""

from collections.abc import Iterator
from typing import TypeVar

from shoestring.errors import RunError
from shoestring.session.deadline import Deadline
from shoestring.session.stop import SessionOver, Stop
from shoestring.units import count_text, seconds_text

T = TypeVar("T")
_SHARE = 0.05  # of the work must be done before its speed is believed


def polled(stop: Stop, kind: str, pieces: Iterator[tuple[T, int]], samples: int) -> Iterator[tuple[T, int]]:
    """`pieces`, pairs of (anything, its samples) of `samples` in all, while they fit.

    Raises SessionOver before the first piece when work of this `kind` was too slow before for the time left; later,
    when this is, or the session must stop. Where even a whole session is too short for it, the SessionOver brings a
    RunError: it would begin again in every session.
    """
    deadline = stop.deadline
    if known := deadline.seconds_per_sample.get(kind):
        _require_fit(deadline, kind, samples, samples, known)
    warm_seconds = 0.0
    warm = done = 0
    for piece, size in pieces:
        if done > warm and (done - warm >= _SHARE * samples or deadline.reached()):
            deadline.seconds_per_sample[kind] = (deadline.elapsed() - warm_seconds) / (done - warm)
            _require_fit(deadline, kind, samples, samples - done, deadline.seconds_per_sample[kind])
        stop.check()
        with deadline.measure(f"{kind} batch"):
            yield piece, size
        done += size
        if not warm:
            # The first holds what happens once: kernels chosen, memory taken.
            warm_seconds, warm = deadline.elapsed(), done


def _require_fit(deadline: Deadline, kind: str, samples: int, left: int, seconds_per_sample: float) -> None:
    """Raises SessionOver when the samples `left` of all `samples` do not fit any more."""
    remaining, limit, stopping = deadline.remaining(), deadline.limit_seconds, deadline.stopping_seconds()
    if remaining is None or limit is None or left * seconds_per_sample <= remaining - stopping:
        return
    whole, most = samples * seconds_per_sample, max(0.0, limit - stopping - (deadline.startup_seconds or 0.0))
    reason = (
        f"{deadline.limit_text()}: the {kind} takes {seconds_text(left * seconds_per_sample)} more, "
        f"{seconds_text(max(0.0, remaining - stopping))} of the session are left"
    )
    error = RunError(
        f"the {kind} of {count_text(samples)} samples takes {seconds_text(whole)} "
        f"({seconds_text(seconds_per_sample)} a sample); a session of {seconds_text(limit)} has "
        f"{seconds_text(most)} for it, and it cannot be continued in another",
        hint="give the session more time (--limit), or evaluate on fewer samples",
    )
    raise SessionOver(reason, None if whole <= most else error)
