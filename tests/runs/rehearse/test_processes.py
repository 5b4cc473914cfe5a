"""The processes of a rehearsal: their end, and the end of a rehearsal that is killed."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from shoestring.runs.rehearse import host_memory, processes

CHILDREN = """
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(60)", sys.argv[1]]
subprocess.Popen(sleep)
subprocess.Popen(sleep, start_new_session=True)
first = os.fork()
if first == 0:  # a daemon
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, sleep)
    os._exit(0)
os.waitpid(first, 0)
open(sys.argv[1], "w").close()
"""
WAITING = f"{CHILDREN}\ntime.sleep(60)"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


@pytest.fixture
def mark(tmp_path):
    """A file that the script makes when it has started its processes, which are found by its name."""
    return tmp_path / f"started-{os.getpid()}"


def living(mark):
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with suppress(psutil.NoSuchProcess):
            if str(mark) in (process.info["cmdline"] or []) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return [pid for pid in found if pid != os.getpid()]


def run(command, folder, poll=lambda: None):
    return processes.run(command, os.environ, folder, records=folder, stdout_to_stderr=True, poll=poll)


def once(mark, do):
    """Return a poll that calls a function once when the mark is there."""
    done = []

    def poll():
        if mark.exists() and not done:
            done.append(True)
            do()

    return poll


def test_exit_status_of_the_script_is_returned(folder):
    assert run([sys.executable, "-c", "raise SystemExit(3)"], folder).status == 3
    assert run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], folder).status == -9


def test_script_has_its_own_environment_and_input(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("ODD", "a=b\udcff\n c")
    (tmp_path / "input").write_text("typed")
    code = "import os, sys; print(repr(os.environ['ODD']), sys.stdin.read(), file=open('out', 'w'))"
    with (tmp_path / "input").open() as file, pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        before = os.dup(0)
        os.dup2(file.fileno(), 0)
        run([sys.executable, "-c", code], folder)
        os.dup2(before, 0)
        os.close(before)
    assert (tmp_path / "out").read_text() == "'a=b\\udcff\\n c' typed\n"


def test_command_that_cannot_be_started_is_an_error(folder, tmp_path):
    with pytest.raises(Exception, match="could not be started"):
        run([str(tmp_path / "missing")], folder)


def test_processes_that_the_script_leaves_are_ended(folder, mark):
    ended = run([sys.executable, "-c", CHILDREN, str(mark)], folder)
    assert (ended.ending, ended.status) == ("exited", 0)
    assert mark.exists() and living(mark) == []


def test_ctrl_c_ends_all_processes_and_is_an_answer(folder, mark):
    def interrupt():
        raise KeyboardInterrupt

    ended = run([sys.executable, "-c", WAITING, str(mark)], folder, once(mark, interrupt))
    assert (ended.ending, ended.status) == ("interrupted", None)
    assert living(mark) == []


@pytest.mark.parametrize("numbers", [[signal.SIGINT, signal.SIGINT], [signal.SIGTERM], [signal.SIGHUP]])
def test_signals_end_all_processes_and_handlers_are_as_before(folder, mark, numbers):
    handlers = [signal.getsignal(number) for number in numbers]

    def send():
        for number in numbers:
            os.kill(os.getpid(), number)

    ended = run([sys.executable, "-c", WAITING, str(mark)], folder, once(mark, send))
    assert (ended.ending, living(mark)) == ("interrupted", [])
    assert [signal.getsignal(number) for number in numbers] == handlers


def test_second_ctrl_c_kills_what_does_not_end(folder, mark):
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{WAITING}"

    def send():
        os.kill(os.getpid(), signal.SIGINT)
        threading.Timer(1, os.kill, [os.getpid(), signal.SIGINT]).start()

    started = time.monotonic()
    ended = run([sys.executable, "-c", code, str(mark)], folder, once(mark, send))
    assert (ended.ending, living(mark)) == ("interrupted", [])
    assert time.monotonic() - started < 8


def test_script_that_kills_its_parent_is_ended(folder, mark):
    code = f"{CHILDREN}\nimport signal; os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)"
    ended = run([sys.executable, "-c", code, str(mark)], folder)
    assert (ended.ending, ended.status) == ("exited", None)
    for pid in living(mark):  # those of other sessions are not known without their parent
        os.kill(pid, signal.SIGKILL)


def test_memory_of_all_processes_is_counted_and_shared_pages_once(folder):
    code = """
import os, time
block = bytearray(300 * 2**20)
block[::4096] = b"1" * len(block[::4096])
for _ in range(3):
    if os.fork() == 0:
        time.sleep(2.5)
        os._exit(0)
time.sleep(2.5)
"""
    peak = run([sys.executable, "-c", code], folder).host_peak_bytes
    assert 300 * 2**20 <= peak < 400 * 2**20


def test_script_is_killed_before_this_machine_s_memory_is_used_up(folder, mark, monkeypatch):
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{WAITING}"
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 0 if mark.exists() else 2**40)
    started = time.monotonic()
    ended = run([sys.executable, "-c", code, str(mark)], folder)
    assert (ended.ending, ended.status, living(mark)) == ("host memory", None, [])
    assert ended.host_peak_bytes > 0 and time.monotonic() - started < 8


def test_script_that_the_system_killed_for_its_memory_is_told(folder, monkeypatch):
    counts = iter([3, 4])
    monkeypatch.setattr(host_memory, "killed_processes", lambda: next(counts))
    ended = run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], folder)
    assert (ended.ending, ended.status) == ("host memory", None)


def test_script_is_the_first_that_the_system_would_end(folder, tmp_path):
    code = f"open({str(tmp_path / 'score')!r}, 'w').write(open('/proc/self/oom_score_adj').read())"
    run([sys.executable, "-c", code], folder)
    assert int((tmp_path / "score").read_text()) >= 500
    assert host_memory.available_bytes() > host_memory.spare_bytes() > 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_killed_rehearsal_leaves_no_process_and_no_folder(folder, mark, number):
    code = f"""
import os, sys
from pathlib import Path
from shoestring.runs.rehearse import processes
command = [sys.executable, "-c", {WAITING!r}, {str(mark)!r}]
folder = Path({str(folder)!r})
processes.run(command, os.environ, folder, records=folder, stdout_to_stderr=False, poll=lambda: None)
"""
    rehearsal = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(living(mark)) == 5  # with the guard, whose arguments have those of the script
    rehearsal.send_signal(number)
    rehearsal.wait()
    deadline = time.monotonic() + 10
    while (living(mark) or Path(folder).exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert living(mark) == []
    assert not folder.exists()
