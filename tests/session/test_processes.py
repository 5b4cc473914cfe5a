"""Signals to real processes: the first asks, the second ends; what is on disk is whole either way."""

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
    with Server() as warm:
        yield warm


@pytest.fixture(scope="module")
def straight(server, tmp_path_factory):
    run = tmp_path_factory.mktemp("straight")
    server.begin(run, slow=False, epochs=EPOCHS)
    assert server.end()[0] == 0
    return final_bits(run)


def standing(server, run, phase):
    """A session of `run` that stands still in `phase`."""
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


@pytest.mark.parametrize("phase", ["update", "evaluation"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once_and_nothing_is_broken(server, straight, tmp_path, number, phase):
    process = standing(server, tmp_path, phase)
    os.kill(process, number)
    # Signals that are pending together are one to the system, so one more is sent until it has taken two.
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(process, number)
            time.sleep(0.005)
    assert server.end()[0] == -number
    assert json.loads((tmp_path / "state.json").read_text())["status"] == "running"
    assert finish(server, tmp_path) == straight
    died, after = ledger(tmp_path)
    assert (died["ended"], after["ended"]) == ("killed", "finished")
    assert "session 1 was killed after" in (tmp_path / "events.jsonl").read_text()


def test_while_data_is_read_one_signal_is_enough(server, straight, tmp_path):
    os.kill(standing(server, tmp_path, "data"), signal.SIGTERM)
    assert server.end()[0] == 0
    state = json.loads((tmp_path / "state.json").read_text())
    assert (state["status"], state["reason"], state["update"]) == ("paused", "SIGTERM", 0)
    assert finish(server, tmp_path) == straight
    assert [line["ended"] for line in ledger(tmp_path)] == ["paused", "finished"]


def test_reading_data_ends_at_the_limit(server, tmp_path):
    server.begin(tmp_path, limit=2.0, margin=1.0, block="data", epochs=EPOCHS)
    status, seconds = server.end()
    assert status == 0
    assert seconds < 2.0
    assert json.loads((tmp_path / "state.json").read_text())["reason"] == "session limit of 2.0 s"
