"""Ending where there is no place to poll."""

import os
import signal
import threading
import time

import pytest

from shoestring.session.deadline import Deadline
from shoestring.session.signals import StopSignals
from shoestring.session.stop import SessionOver, Stop, session


def endless(asked=None):
    if asked:
        os.kill(asked, signal.SIGTERM)
    until = time.monotonic() + 30
    while time.monotonic() < until:
        pass
    raise AssertionError("nobody stopped it")


def test_the_limit_ends_work_that_does_not_poll():
    with StopSignals() as signals:
        stop = Stop(deadline=Deadline(0.3, margin_seconds=0.1), signals=signals)
        with pytest.raises(SessionOver, match="session limit of 300 ms"), stop.at_once():
            endless()
        assert stop.deadline.elapsed() < 30
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@pytest.mark.parametrize("before", [False, True])
def test_a_signal_ends_work_that_does_not_poll(before):
    with session() as stop:
        if before:
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SessionOver, match="SIGTERM"), stop.at_once():
            endless(os.getpid())
        assert stop.reason() == "SIGTERM"


def test_afterwards_signals_set_a_flag_again():
    with session() as stop:
        with stop.at_once():
            pass
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.reason() == "SIGINT"


def test_a_limit_that_has_passed_ends_it_before_it_begins_but_one_that_nobody_keeps_does_not():
    begun = []
    with StopSignals() as signals:
        spent = Stop(deadline=Deadline(100, started=time.monotonic() - 99), signals=signals)
        with pytest.raises(SessionOver), spent.at_once():
            begun.append("spent")
        with Stop(deadline=Deadline(1e-9), signals=signals).at_once():
            begun.append("impossible")
    assert begun == ["impossible"]


def test_outside_the_main_thread_it_does_nothing():
    done = []

    def work():
        with session(100) as stop, stop.at_once():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]
