"""Stopping work that does not poll."""

import os
import signal
import threading
import time

import pytest

from shoestring.training.session.deadline import Deadline
from shoestring.training.session.signals import StopSignals
from shoestring.training.session.stop import SessionOver, Stop, session


def run_endlessly(signal_to=None):
    if signal_to:
        os.kill(signal_to, signal.SIGTERM)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        pass
    raise AssertionError("the work was not stopped")


def test_limit_stops_work_that_does_not_poll():
    with StopSignals() as signals:
        stop = Stop(deadline=Deadline(0.3, margin_seconds=0.1), signals=signals)
        with pytest.raises(SessionOver, match="session limit of 300 ms"), stop.interrupting():
            run_endlessly()
        assert stop.deadline.elapsed() < 30
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@pytest.mark.parametrize("before_entry", [False, True])
def test_signal_stops_work_that_does_not_poll(before_entry):
    with session() as stop:
        if before_entry:
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SessionOver, match="SIGTERM"), stop.interrupting():
            run_endlessly(os.getpid())
        assert stop.reason() == "SIGTERM"


def test_signals_set_a_flag_after_the_block():
    with session() as stop:
        with stop.interrupting():
            pass
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.reason() == "SIGINT"


def test_passed_limit_stops_on_entry_impossible_does_not():
    entered = []
    with StopSignals() as signals:
        passed = Stop(deadline=Deadline(100, started=time.monotonic() - 99), signals=signals)
        with pytest.raises(SessionOver), passed.interrupting():
            entered.append("passed")
        with Stop(deadline=Deadline(1e-9), signals=signals).interrupting():
            entered.append("impossible")
    assert entered == ["impossible"]


def test_no_effect_outside_the_main_thread():
    completed = []

    def work():
        with session(100) as stop, stop.interrupting():
            completed.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert completed == [True]
