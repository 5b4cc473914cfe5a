"""A supervisor and the process that it supervises. Each supervisor is a process of its own, since it forks."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

SCRIPT = """
import os, signal, subprocess, sys, time
from shoestring.training.session.signals import StopSignals
from shoestring.runs.train.supervisor import supervise

def work():
    {work}

limit = {limit}
end = supervise(work, None if limit is None else time.monotonic() + limit)
print(end.status, end.at_limit, "torch" in sys.modules, flush=True)
"""

WAIT_FOR_SIGNAL = """
    with StopSignals() as signals:
        print(os.getpid(), flush=True)
        while signals.received is None:
            time.sleep(0.01)
    print(signals.received, flush=True)
    return 3
"""

HANG = """
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(os.getpid(), child.pid, flush=True)
    time.sleep(600)
"""


def start(work, limit=None):
    code = SCRIPT.format(work=work.strip(), limit=limit)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_is_forwarded(number):
    with start(WAIT_FOR_SIGNAL) as process:
        process.stdout.readline()
        process.send_signal(number)
        assert process.stdout.read().splitlines() == [number.name, "3 False False"]


def test_signals_to_the_whole_group_are_one_request():
    with start(WAIT_FOR_SIGNAL) as process:
        child = int(process.stdout.readline())
        for pid in (child, process.pid, process.pid):
            os.kill(pid, signal.SIGINT)
            time.sleep(0.03)
        assert process.stdout.read().splitlines() == ["SIGINT", "3 False False"]


def test_signal_before_the_handlers_is_not_lost():
    with start("print(flush=True); time.sleep(0.5)" + WAIT_FOR_SIGNAL) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read().splitlines()[1:] == ["SIGTERM", "3 False False"]


def test_process_is_killed_at_the_limit_with_its_descendants():
    with start(HANG, limit=1.0) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert process.stdout.read() == f"{-signal.SIGKILL} True False\n"
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait(10)


def test_process_ends_with_a_killed_supervisor():
    with start("print(os.getpid(), flush=True); time.sleep(600)") as process:
        child = psutil.Process(int(process.stdout.readline()))
        process.kill()
        child.wait(10)


def test_error_in_the_process_is_its_status_one():
    with start("raise ValueError('broken')") as process:
        assert process.stdout.read() == "1 False False\n"
        assert "ValueError: broken" in process.stderr.read()


def test_process_without_a_sign_of_life_is_killed():
    code = SCRIPT.format(work="os.kill(os.getpid(), signal.SIGSTOP)", limit=None)
    code = code.replace("+ limit)", "+ limit, silence_seconds=0.5)").replace("end.at_limit", "end.is_silent")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.read() == f"{-signal.SIGKILL} True False\n"


SAVE_AFTER_THE_LIMIT = """
    print(os.getpid(), flush=True)
    while time.monotonic() < limit_at:
        time.sleep(0.01)
    time.sleep(0.3)  # it saves
    return 0
"""


def test_process_that_was_stopped_until_after_the_limit_can_save():
    work = SAVE_AFTER_THE_LIMIT.replace("limit_at", str(time.monotonic() + 1.5))
    with start(work, limit=1.0) as process:
        pids = [process.pid, int(process.stdout.readline())]
        for number, seconds in ((signal.SIGSTOP, 1.2), (signal.SIGCONT, 0.0)):
            for pid in pids:
                os.kill(pid, number)
            time.sleep(seconds)
        assert process.stdout.read() == "0 False False\n"
        assert process.wait() == 0
