"""Compilers: their errors, and their end with the process that started them."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from shoestring.base.errors import RunError
from shoestring.planning.simulator.compiling import compiling, run

SLEEP = "import os, time; open('started', 'w').write(str(os.getpid())); time.sleep(60)"


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


def is_running(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_output_and_folder_stay_if_all_goes_well(tmp_path):
    with compiling(tmp_path):
        assert run(["echo", "made"], "failure") == "made\n"
    assert tmp_path.exists()


def test_full_disk_is_told_from_an_error_of_the_source(tmp_path):
    with pytest.raises(OSError, match="No space left on device"):
        run(["sh", "-c", "echo 'x.s: fatal error: No space left on device' >&2; exit 1"], "failure")
    with pytest.raises(RunError, match="failure") as error:
        run(["sh", "-c", "echo 'g++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1"], "failure")
    assert "was killed" in error.value.hint and "memory" in error.value.hint


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_compilers_end_with_the_process_that_started_them(tmp_path, number):
    folder = tmp_path / "unfinished"
    folder.mkdir()
    code = f"""
import sys
from pathlib import Path
from shoestring.planning.simulator.compiling import compiling, run
with compiling(Path({str(folder)!r})):
    run([sys.executable, "-c", {SLEEP!r}], "failure")
"""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stderr=subprocess.DEVNULL)
    started = tmp_path / "started"
    wait_for(lambda: started.exists() and started.read_text())
    compiler = int(started.read_text())
    os.kill(process.pid, number)
    process.wait(20)
    wait_for(lambda: not is_running(compiler))
    if number == signal.SIGKILL:
        wait_for(lambda: not folder.exists())
