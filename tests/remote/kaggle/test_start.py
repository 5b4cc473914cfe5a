"""A chain on the loopback Kaggle, by the unpatched client: real sessions, a kill, and a push answered by 502."""

import json
from pathlib import Path

import pytest
from benchmarks.kaggle import payload

from shoestring.remote.kaggle.chain import run_chain
from shoestring.remote.kaggle.client import Client
from shoestring.remote.kaggle.following import fetch, status, stop
from shoestring.remote.kaggle.job import Job
from tests.loopback_kaggle import Faults, Loopback
from tests.remote.kaggle.memory_kaggle import make_state

PAYLOAD = Path(payload.__file__).read_text()
EVERY = 0.05


def make_job(updates):
    config = {"seed": 1, "updates": updates, "session_updates": 100, "update_seconds": 0.02, "start_seconds": 0.05}
    return Job(
        script=lambda values: f"import json\nCONFIG = json.loads({json.dumps(dict(values))!r})\n{PAYLOAD}",
        config=config,
        package={"shoestring-package.json": b"{}"},
        package_digest="0" * 64,
    )


@pytest.fixture
def loopback(tmp_path):
    with Loopback(tmp_path / "kaggle", session_seconds=10, keep_outputs="always", processing_seconds=0.1) as loopback:
        yield loopback


def go_on(run, loopback, updates, on_event=lambda _: None, limit_seconds=8):
    with Client(environment=loopback.environment, timeout_seconds=10, patience_seconds=5, pause_seconds=0.02) as client:
        return run_chain(run, client, make_job(updates), EVERY, on_event, state=make_state(limit_seconds=limit_seconds))


def test_chain_with_a_kill_and_a_push_that_landed_unseen_ends_in_the_same_bits(loopback, tmp_path):
    events = []

    def on_event(text):
        events.append(text)
        if text.startswith("the package is ready"):
            object.__setattr__(loopback.dice, "faults", Faults(error_after=0.5))
        if text.startswith(("session 1 has landed", "session 1 is pushed")):
            object.__setattr__(loopback.dice, "faults", Faults())
        if text == "session 2 runs":
            loopback.kill_sessions()

    run = tmp_path / "run"
    state = go_on(run, loopback, 180, on_event)
    assert state.status == "finished", state.reason
    value = payload.digest_of("start", 1)
    for update in range(180):
        value = payload.advance(value, update + 1)
    assert json.loads((run / "state.json").read_text())["value"] == value
    counts = loopback.counts()
    assert (counts["doubled"], counts["quota_exceeded"], counts["running"]) == (0, 0, 0)
    token = loopback.settings.token
    assert not any(token.encode() in path.read_bytes() for path in run.rglob("*") if path.is_file())
    assert token not in "".join(events)


def test_stop_deletes_what_runs_and_the_newest_output_remains(loopback, tmp_path):
    run = tmp_path / "run"

    def on_event(text):
        if text == "session 2 runs":
            (run / "kaggle" / "stop").touch()

    assert go_on(run, loopback, 10_000, on_event).status == "stopped"
    assert loopback.counts()["running"] == 1
    assert status(run, loopback.environment)["sessions"][1]["status"] == "running"
    state, deleted = stop(run, lambda kernels, _: kernels == ["me/run-abcdef-b"], EVERY, loopback.environment)
    loopback.wait_until_idle(5)
    assert deleted == ["me/run-abcdef-b"] and state.status == "stopped"
    fetch(run, loopback.environment)
    assert json.loads((run / "state.json").read_text())["update"] == state.sessions[0].update
