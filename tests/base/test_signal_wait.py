"""Waiting for a blocked signal in a process that is stopped meanwhile."""

import signal
import subprocess
import sys
import threading
import time

from shoestring.base.signal_wait import wait_for_signal

STOPPED_WHILE_IT_WAITS = """
import signal
from shoestring.base.signal_wait import wait_for_signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGUSR2])
print(flush=True)
print(wait_for_signal([signal.SIGUSR1], 0.2), wait_for_signal([signal.SIGUSR2], 60))
"""


def test_blocked_signal_is_received_once():
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        assert wait_for_signal([signal.SIGUSR1], -5.0) is None
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)  # other threads do not block it
        assert wait_for_signal([signal.SIGUSR1], 60.0) == signal.SIGUSR1
        assert wait_for_signal([signal.SIGUSR1], 0.01) is None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_process_that_was_stopped_receives_what_was_sent():
    with subprocess.Popen([sys.executable, "-c", STOPPED_WHILE_IT_WAITS], stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.4)
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGUSR2)
        assert process.stdout.read() == f"None {signal.SIGUSR2.value}\n"
