"""Signals to real processes: the first requests a stop, the second kills; the files on disk are complete either way."""

import contextlib
import json
import os
import signal
import time

import pytest

from tests.forked import Server
from tests.sessions import final_bits

EPOCHS = 2


@pytest.fixture(scope="module")
def server():
    with Server() as server:
        yield server


@pytest.fixture(scope="module")
def uninterrupted(server, tmp_path_factory):
    run = tmp_path_factory.mktemp("uninterrupted")
    server.begin(run, slow=False, epochs=EPOCHS)
    assert server.end()[0] == 0
    return final_bits(run)


def start_blocked_session(server, run, phase):
    """Start a session of `run` that blocks in `phase`, and return its process id once it does."""
    process = server.begin(run, slow=False, block=phase, epochs=EPOCHS)
    while not (run / "standing").exists():
        time.sleep(0.005)
    (run / "standing").unlink()
    return process


def finish(server, run):
    server.begin(run, slow=False, epochs=EPOCHS)
    assert server.end()[0] == 0
    return final_bits(run)


def ledger(run):
    return json.loads((run / "ledger.json").read_text())["sessions"]


@pytest.mark.parametrize(("phase", "number"), [("update", signal.SIGTERM), ("evaluation", signal.SIGINT)])
def test_second_signal_kills_without_damage(server, uninterrupted, tmp_path, number, phase):
    process = start_blocked_session(server, tmp_path, phase)
    os.kill(process, number)
    # The system merges pending signals of one kind, so signals are sent until the process has received two.
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(process, number)
            time.sleep(0.005)
    assert server.end()[0] == -number
    assert json.loads((tmp_path / "state.json").read_text())["status"] == "running"
    assert finish(server, tmp_path) == uninterrupted
    killed, resumed = ledger(tmp_path)
    assert (killed["ended"], resumed["ended"]) == ("killed", "finished")
    assert "session 1 was killed after" in (tmp_path / "events.jsonl").read_text()


def test_one_signal_stops_data_loading(server, uninterrupted, tmp_path):
    os.kill(start_blocked_session(server, tmp_path, "data"), signal.SIGTERM)
    assert server.end()[0] == 0
    state = json.loads((tmp_path / "state.json").read_text())
    assert (state["status"], state["reason"], state["update"]) == ("paused", "SIGTERM", 0)
    assert finish(server, tmp_path) == uninterrupted
    assert [entry["ended"] for entry in ledger(tmp_path)] == ["paused", "finished"]


def test_data_loading_stops_at_the_limit(server, tmp_path):
    server.begin(tmp_path, limit=2.0, margin=1.0, block="data", epochs=EPOCHS)
    status, seconds = server.end()
    assert status == 0
    assert seconds < 2.0
    assert json.loads((tmp_path / "state.json").read_text())["reason"] == "session limit of 2.0 s"
