"""Work that cannot be paused, with a fake clock that only the work advances."""

import pytest

from shoestring.training.session.deadline import Deadline
from shoestring.training.session.polling import poll_deadline
from shoestring.training.session.signals import StopSignals
from shoestring.training.session.stop import SessionOver, Stop


class FakeClock:
    now = 0.0

    def __call__(self):
        return self.now


def work(limit, *, elapsed=0.0, seconds=1.0, samples=100, known_seconds=None):
    """Process samples in pieces of ten at `seconds` each.

    Returns the number of processed samples, the SessionOver if any, and the time at the end.
    """
    clock = FakeClock()
    deadline = Deadline(limit, margin_seconds=0, clock=clock)
    with deadline.measure("update"):
        clock.now = elapsed
    deadline._durations.clear()
    if known_seconds:
        deadline.seconds_per_sample["evaluation"] = known_seconds
    processed, session_over = 0, None
    pieces = (("piece", 10) for _ in range(samples // 10))
    try:
        for _, size in poll_deadline(Stop(deadline=deadline, signals=StopSignals()), "evaluation", pieces, samples):
            clock.now += size * seconds
            processed += size
    except SessionOver as error:
        session_over = error
    return processed, session_over, clock.now


def test_work_that_fits_is_completed():
    assert work(150)[:2] == (100, None)
    assert work(None)[:2] == (100, None)


def test_work_stops_once_its_speed_is_known():
    processed, session_over, end = work(150, elapsed=60)
    assert (processed, end) == (20, 80)
    assert session_over.error is None
    details = "the evaluation takes 1 min 20 s more, but only 1 min 00 s of the session remain"
    assert session_over.reason == f"session limit of 2 min 30 s: {details}"


def test_work_does_not_start_if_known_too_slow():
    processed, session_over, _ = work(150, elapsed=60, known_seconds=1.0)
    assert processed == 0
    assert session_over.error is None


def test_work_too_long_for_any_session_is_an_error():
    processed, session_over, end = work(90)
    assert processed == 20
    assert end <= 90
    assert "of 100 samples takes 1 min 40 s (1.0 s a sample)" in session_over.error.message
    assert "a session of 1 min 30 s has only 1 min 20 s for it" in session_over.error.message


def test_slow_work_is_an_error_after_few_samples():
    processed, session_over, end = work(100, samples=1000)
    assert processed == 20 or end <= 100
    assert "of 1,000 samples takes 16 min 40 s" in session_over.error.message


def test_signal_stops_the_work():
    stop = Stop(deadline=Deadline(None), signals=StopSignals())
    stop.signals.received = "SIGTERM"
    with pytest.raises(SessionOver, match="SIGTERM"):
        next(poll_deadline(stop, "evaluation", iter([("piece", 1)]), 1))
