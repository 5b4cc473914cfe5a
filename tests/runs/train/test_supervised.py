"""The state of a run whose training process was ended. The process is a stand-in that needs no torch."""

import json
import signal
import subprocess
import sys
import time

import pytest

from shoestring.runs.train.supervised import newest_update
from shoestring.training.checkpoint.store import Store
from shoestring.training.monitor.events import Events, read
from shoestring.training.run_directory.directory import RunDirectory

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from shoestring.base.errors import ShoestringError
from shoestring.runs.train.supervised import train_supervised
from shoestring.training.run_directory.stored import StoredState

run = Path(sys.argv[1])

def work():
    {work}

try:
    limit = {limit}
    outcome = train_supervised(
        work, run, on="cpu", limit_seconds=limit, started=time.monotonic(), resume_command="shoestring train mine.py"
    )
    print(outcome.status, outcome.update, outcome.total_updates)
except ShoestringError as error:
    print(error)
"""

HANG = "while True: time.sleep(600)"
FINISH = 'StoredState(status="finished", update=9, next="report").write(run / "state.json"); '

UNBLOCK = "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT]); print('ready', flush=True)\n    "


@pytest.fixture
def run(tmp_path):
    """The directory of a run that was killed after the checkpoint of update 4."""
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    store = Store(folder / "checkpoints")
    for update in (2, 4):
        store.save(update, {"model": {}})
    (folder / "plan.json").write_text("{}")
    (folder / "state.json").write_text('{"status": "running", "update": 4, "total_updates": 9}')
    with Events(folder / "events.jsonl") as events:
        events.emit("session", update=0)
        events.emit("save", update=4, kind="full")
    return folder


def supervised(run, work, limit=None):
    code = SCRIPT.format(work=work, limit=limit)
    process = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, timeout=60)
    state = json.loads((run / "state.json").read_text())
    return process.returncode, process.stdout, state


def test_session_is_paused_at_the_limit(run):
    status, output, state = supervised(run, HANG, limit=3)
    assert (status, output) == (0, "paused 4 9\n")
    assert (state["status"], state["update"], state["next"]) == ("paused", 4, "shoestring train mine.py")
    assert state["reason"].startswith("session limit of 3.0 s: the training process did not stop in time")
    stop = list(read(run / "events.jsonl"))[-1]
    assert (stop["event"], stop["session"], stop["status"], stop["update"]) == ("stop", 1, "paused", 4)


def test_session_is_paused_before_it_has_a_directory(tmp_path):
    status, output, state = supervised(tmp_path / "new", HANG, limit=3)
    assert (status, output) == (0, "paused 0 0\n")
    assert (state["status"], state["update"]) == ("paused", 0)
    # A command without the options, which the plan would have, would train another run.
    assert state["next"] == "nothing of the run is stored yet: the same command starts it"


def test_finished_run_whose_process_does_not_end_is_finished(run):
    for end, limit in ((HANG.replace("while True: ", ""), 4), ("os.kill(os.getpid(), signal.SIGKILL)", None)):
        status, output, state = supervised(run, FINISH + end, limit=limit)
        assert (status, output, state["status"]) == (0, "", "finished")
        (run / "state.json").write_text('{"status": "running", "update": 4, "total_updates": 9}')


def test_exit_status_is_that_of_the_process(run):
    status, output, state = supervised(run, "return 2")
    assert (status, output, state["status"]) == (2, "", "running")


def test_process_that_leaves_python_without_an_error_is_a_failed_run(run):
    """A session whose end is recorded in the words of the session before, and one that has ended, are no such runs."""
    _, output, state = supervised(run, "os._exit(0)")
    reason = "the training process left Python without an error (status 0) before its session had ended"
    assert output.startswith(f"{reason}\nhint: a call of os._exit in the recipe")
    assert "to continue from update 4: shoestring train mine.py" in output
    assert (state["status"], state["reason"]) == ("failed", reason)
    assert supervised(run, "return 0")[:2] == (0, "")
    assert supervised(run, FINISH + "os._exit(0)")[:2] == (0, "")


def test_killed_process_is_a_failed_run(run):
    _, output, state = supervised(run, "os.kill(os.getpid(), signal.SIGKILL)")
    assert output.startswith("the training process was ended by SIGKILL; the system sends SIGKILL if memory runs out\n")
    assert "hint: train again to continue from update 4: shoestring train mine.py" in output
    assert (state["status"], state["update"]) == ("failed", 4)
    # Without an end, the next session looks for the reason.
    assert list(read(run / "events.jsonl"))[-1]["event"] == "save"


def test_run_of_another_process_is_left_alone(run):
    """A process that waits for the lock until its limit does not write."""
    with RunDirectory(run).locked():
        _, output, state = supervised(run, HANG, limit=3)
    assert output.startswith(f"{run} is being trained by another process")
    assert state["status"] == "running"


def test_second_request_ends_the_run_at_once(run):
    """The first one arrives before the process handles signals; a handler could not run in what it is doing."""
    send = "import threading; send = lambda: os.kill(os.getppid(), signal.SIGTERM); "
    send += "send(); threading.Timer(0.1, send).start(); threading.Timer(2.5, send).start(); "
    status, output, state = supervised(run, send + HANG.replace("while True: ", ""))
    assert (status, output) == (-signal.SIGTERM, "")
    assert (state["status"], state["update"], state["reason"]) == ("paused", 4, "SIGTERM, a second time")


def test_incomplete_checkpoint_is_not_the_newest(run):
    assert newest_update(run / "checkpoints") == 4
    (run / "checkpoints" / "update-00000004" / "state.json").write_text("")
    assert newest_update(run / "checkpoints") == 2
    assert newest_update(run / "missing") == 0


def test_signal_after_the_training_process_has_ended_does_not_change_the_status(run):
    """A terminal and a launcher may both send the signal, and the training process may have ended in between."""
    code = SCRIPT.format(
        work=f"signal.signal(signal.SIGINT, lambda *_: ({FINISH.removesuffix('; ')}, os._exit(0))); " + UNBLOCK + HANG,
        limit=None,
    )
    slow_end = "except SystemExit:\n    time.sleep(1)\n    raise\n"
    code = code.replace("except ShoestringError", slow_end + "except ShoestringError")
    with subprocess.Popen([sys.executable, "-c", code, str(run)], stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
