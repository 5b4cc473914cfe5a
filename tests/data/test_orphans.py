"""A process ends with the one that started it, whether the system tells of its death or it has to look."""

import subprocess
import sys

import psutil
import pytest

CODE = """
import os, sys, time
from shoestring.data import orphans
if {asked}:
    orphans._prctl = lambda: None
parent = os.getpid()
if os.fork() == 0:
    {late}
    orphans.end_with(parent)
    print(os.getpid(), flush=True)
    time.sleep(600)
{last}
"""


def started(way, *, late="", last="time.sleep(600)"):
    code = CODE.format(asked=way == "asked", late=late, last=last)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


@pytest.fixture(params=["told", "asked"])
def way(request):
    return request.param


def test_it_ends_when_its_parent_is_killed(way):
    with started(way) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        assert child.is_running()
        parent.kill()
        child.wait(timeout=10)


def test_it_ends_when_its_parent_was_gone_before(way):
    with started(way, late="time.sleep(1)", last="os._exit(0)") as parent:
        line = parent.stdout.read()  # to its end: no process holds it any more
        assert parent.wait() == 0 and (way == "asked" or line == "")


def test_it_goes_on_while_its_parent_is_there(way):
    with started(way) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        with pytest.raises(psutil.TimeoutExpired):
            child.wait(timeout=1.5)
        parent.kill()
