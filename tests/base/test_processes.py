"""A process ends with its parent, by a signal of the system or by polling; whether a process runs; how threads wait."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from shoestring.base.processes import is_running, limit_spinning

CODE = """
import os, sys, time
from shoestring.base import processes
if {polling}:
    processes._prctl = lambda: None
parent = os.getpid()
if os.fork() == 0:
    {before}
    processes.exit_with_parent(parent)
    print(os.getpid(), flush=True)
    time.sleep(600)
{after}
"""


def start(method, *, before="", after="time.sleep(600)"):
    code = CODE.format(polling=method == "polling", before=before, after=after)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


@pytest.fixture(params=["signal", "polling"])
def method(request):
    return request.param


def test_process_ends_when_its_parent_is_killed(method):
    with start(method) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        assert child.is_running()
        parent.kill()
        child.wait(timeout=10)


def test_process_ends_when_its_parent_ended_before(method):
    with start(method, before="time.sleep(1)", after="os._exit(0)") as parent:
        output = parent.stdout.read()  # until no process has it open
        assert parent.wait() == 0 and (method == "polling" or output == "")


def test_process_runs_while_its_parent_runs(method):
    with start(method) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        with pytest.raises(psutil.TimeoutExpired):
            child.wait(timeout=1.5)
        parent.kill()


def test_process_that_has_ended_is_not_running_before_its_parent_notices():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert is_running(process.pid)
        process.kill()
        while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        assert not is_running(process.pid)
    assert not is_running(process.pid)


@pytest.mark.parametrize(
    ("environment", "spins"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_threads_wait_as_the_environment_tells_or_sleep_soon(monkeypatch, environment, spins):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # so that its absence is restored
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    limit_spinning()
    assert os.environ.get("GOMP_SPINCOUNT") == spins
