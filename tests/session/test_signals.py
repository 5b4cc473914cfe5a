import os
import signal
import subprocess
import sys
import time

import pytest

from shoestring.session.deadline import Deadline
from shoestring.session.signals import StopSignals
from shoestring.session.stop import SessionOver, Stop


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
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


def test_second_signal_ends_the_process():
    script = (
        "import os, signal\n"
        "from shoestring.session.signals import StopSignals\n"
        "with StopSignals():\n"
        "    os.kill(os.getpid(), signal.SIGINT); os.kill(os.getpid(), signal.SIGTERM); print('alive')\n"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert "alive" not in process.stdout


def test_limit_is_a_reason_to_stop():
    with StopSignals() as signals:
        assert Stop(deadline=Deadline(None), signals=signals).reason() is None
        assert (
            Stop(deadline=Deadline(20, started=time.monotonic() - 20), signals=signals).reason()
            == "session limit of 20.0 s"
        )
