import os
import signal
import subprocess
import sys
import time

import pytest

from shoestring.training.session.deadline import Deadline
from shoestring.training.session.signals import StopSignals
from shoestring.training.session.stop import SessionOver, Stop


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_sets_flag_and_handlers_are_restored(number):
    handler = signal.getsignal(number)
    with StopSignals() as signals:
        os.kill(os.getpid(), number)
        assert signals.received == number.name
        stop = Stop(deadline=Deadline(None), signals=signals)
        assert stop.reason() == number.name
        with pytest.raises(SessionOver):
            stop.check()
    assert signal.getsignal(number) is handler


SECOND_SIGNAL_SCRIPT = """
import os, signal
from shoestring.training.session.signals import StopSignals
seconds = 0.0
with StopSignals(clock=lambda: seconds) as signals:
    signals.describe_loss = lambda: "3 updates are lost"
    os.kill(os.getpid(), signal.SIGINT)
    seconds = 1.9
    os.kill(os.getpid(), signal.SIGTERM)
    print(signals.received, flush=True)
    seconds = 2.1
    os.kill(os.getpid(), signal.SIGTERM)
    print("alive")
"""


def test_signals_within_two_seconds_are_one_request():
    process = subprocess.run([sys.executable, "-c", SECOND_SIGNAL_SCRIPT], capture_output=True, text=True, timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert process.stdout == "SIGINT\n"
    assert process.stderr == "SIGTERM: ending at once; 3 updates are lost\n"


def test_ignored_hangup_stays_ignored():
    previous_handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.received is None
    finally:
        signal.signal(signal.SIGHUP, previous_handler)


def test_limit_is_a_reason_to_stop():
    with StopSignals() as signals:
        assert Stop(deadline=Deadline(None), signals=signals).reason() is None
        assert (
            Stop(deadline=Deadline(20, started=time.monotonic() - 20), signals=signals).reason()
            == "session limit of 20.0 s"
        )
