"""The processes of a rehearsal: their end, and the end of a rehearsal that is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from shoestring.runs.rehearse import processes

CHILDREN = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=False)
print("started", flush=True)
time.sleep(60)
"""


def session_members(session):
    members = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process.pid)
        except (OSError, psutil.NoSuchProcess):
            pass
    return members


def run(command, folder, poll=lambda: None):
    return processes.run(command, os.environ, folder, stdout_to_stderr=True, poll=poll)


def test_exit_status_of_the_script_is_returned(tmp_path):
    assert run([sys.executable, "-c", "raise SystemExit(3)"], tmp_path).status == 3
    assert run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], tmp_path).status == -9


def test_processes_that_the_script_leaves_are_ended(tmp_path):
    code = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid)"
    sessions = []
    original = processes._start_guard

    def start_guard(session, folder):
        sessions.append(session)
        return original(session, folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "_start_guard", start_guard)
        ended = run([sys.executable, "-c", code], tmp_path)
    assert (ended.ending, ended.status) == ("exited", 0)
    assert session_members(sessions[0]) == []


def test_ctrl_c_ends_all_processes_and_is_an_answer(tmp_path):
    polls = []

    def poll():
        polls.append(time.monotonic())
        if len(polls) == 3:
            raise KeyboardInterrupt

    ended = run([sys.executable, "-c", CHILDREN], tmp_path, poll)
    assert (ended.ending, ended.status) == ("interrupted", None)
    assert time.monotonic() - polls[2] < 20


def test_memory_of_all_processes_is_counted(tmp_path):
    code = "b = bytearray(300 * 2**20); b[::4096] = b'1' * len(b[::4096]); import time; time.sleep(2.5)"
    peak = run([sys.executable, "-c", code], tmp_path).host_peak_bytes
    assert 300 * 2**20 <= peak < 400 * 2**20


def test_killed_rehearsal_leaves_no_process_and_no_folder(tmp_path):
    folder = tmp_path / "records"
    folder.mkdir()
    code = f"""
import os, sys
from pathlib import Path
from shoestring.runs.rehearse import processes
command = [sys.executable, "-c", {CHILDREN!r}]
processes.run(command, os.environ, Path({str(folder)!r}), stdout_to_stderr=False, poll=lambda: None)
"""
    rehearsal = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    with rehearsal.stdout as output:
        assert output.readline() == "started\n"
    script = next(
        child for child in psutil.Process(rehearsal.pid).children() if "guard.py" not in " ".join(child.cmdline())
    )
    session = script.pid
    assert len(session_members(session)) == 2
    rehearsal.send_signal(signal.SIGKILL)
    rehearsal.wait()
    deadline = time.monotonic() + 10
    while (session_members(session) or Path(folder).exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert session_members(session) == []
    assert not folder.exists()
