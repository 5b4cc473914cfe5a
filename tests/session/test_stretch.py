"""Work that cannot be paused, on a clock that only work moves."""

import pytest

from shoestring.session.deadline import Deadline
from shoestring.session.signals import StopSignals
from shoestring.session.stop import SessionOver, Stop
from shoestring.session.stretch import polled


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def work(limit, *, spent=0.0, seconds=1.0, samples=100, known=None):
    """How far 100 samples came at so many seconds each, in tens, and how they were stopped."""
    clock = Clock()
    deadline = Deadline(limit, margin_seconds=0, clock=clock)
    with deadline.measure("update"):
        clock.now = spent
    deadline._durations.clear()
    if known:
        deadline.seconds_per_sample["evaluation"] = known
    done, over = 0, None
    pieces = (("piece", 10) for _ in range(samples // 10))
    try:
        for _, size in polled(Stop(deadline=deadline, signals=StopSignals()), "evaluation", pieces, samples):
            clock.now += size * seconds
            done += size
    except SessionOver as stopped:
        over = stopped
    return done, over, clock.now


def test_what_fits_is_done():
    assert work(150)[:2] == (100, None)
    assert work(None)[:2] == (100, None)


def test_what_will_not_fit_is_left_once_its_speed_is_known():
    done, over, ended = work(150, spent=60)
    assert (done, ended) == (20, 80)
    assert over.error is None
    took = "the evaluation takes 1 min 20 s more, 1 min 00 s of the session are left"
    assert over.reason == f"session limit of 2 min 30 s: {took}"


def test_it_is_not_begun_when_its_speed_is_known_from_before():
    done, over, _ = work(150, spent=60, known=1.0)
    assert done == 0
    assert over.error is None


def test_what_fits_into_no_session_is_an_error_with_numbers():
    done, over, ended = work(90)
    assert done == 20
    assert ended <= 90
    assert "of 100 samples takes 1 min 40 s (1.0 s a sample)" in over.error.message
    assert "a session of 1 min 30 s has 1 min 20 s for it" in over.error.message


def test_what_is_so_slow_that_a_session_sees_little_of_it_is_one_too():
    done, over, ended = work(100, samples=1000)
    assert done == 20 or ended <= 100
    assert "of 1,000 samples takes 16 min 40 s" in over.error.message


def test_a_signal_ends_it():
    stop = Stop(deadline=Deadline(None), signals=StopSignals())
    stop.signals.received = "SIGTERM"
    with pytest.raises(SessionOver, match="SIGTERM"):
        next(polled(stop, "evaluation", iter([("piece", 1)]), 1))
