"""The state machine: one session after the other, whatever is lost, refused or killed."""

import itertools
import json
import os
import shutil
import time

import pytest

from shoestring.base.errors import RunError
from shoestring.remote.kaggle import polling, pushing
from shoestring.remote.kaggle.chain import run_chain
from shoestring.remote.kaggle.chain_file import read_chain
from shoestring.remote.kaggle.client import KaggleError
from tests.remote.kaggle.memory_kaggle import JOB, TOTAL, Kill, MemoryKaggle, make_state, slugs

EVERY = 1e-4


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


def finish(run, kaggle, state=None, **arguments):
    return run_chain(run, kaggle, JOB, EVERY, state=state or make_state(), **arguments)


def test_sessions_alternate_until_the_run_is_finished_and_fetched(run):
    kaggle, events = MemoryKaggle(), []
    state = finish(run, kaggle, on_event=events.append)
    assert (state.status, [item.update for item in state.sessions]) == ("finished", [10, 20, 30])
    assert slugs(kaggle) == ["a", "b", "a"] and kaggle.most_running == 1
    assert (run / "state.json").read_text() == str(TOTAL) and (run / "plan.json").exists()
    assert not (run / "kaggle" / "incoming").exists()
    assert read_chain(run / "kaggle") == state
    assert events[0].startswith("uploading the package me/run-abcdef-wheels")
    pushes = len(kaggle.pushes)
    assert finish(run, kaggle).status == "finished" and len(kaggle.pushes) == pushes


def test_laptop_killed_at_any_instant_pushes_nothing_twice(run, tmp_path):
    for kill_at in itertools.count(2, 1 if os.environ.get("SHOESTRING_SOAK") else 3):
        kaggle = MemoryKaggle(kill_at=kill_at)
        folder = tmp_path / str(kill_at)
        try:
            finish(folder, kaggle)
        except Kill:
            kaggle.kill_at = None
            state = finish(folder, kaggle)
            assert state.status == "finished" and len(state.sessions) == 3
            assert len(kaggle.pushes) == 3 and kaggle.most_running == 1, kill_at
        else:
            if kill_at > 2 * kaggle.calls + 2:
                break
    assert kill_at > 50


def test_a_push_that_landed_unseen_is_adopted(run):
    kaggle = MemoryKaggle(["landed unseen", 10, 10])
    assert finish(run, kaggle).status == "finished"
    assert len(kaggle.pushes) == 3


def test_a_push_that_did_not_land_is_made_again(run):
    kaggle = MemoryKaggle()
    kaggle.refusals = [KaggleError("502", "temporary"), KaggleError("a version is processed", "forbidden")]
    assert finish(run, kaggle).status == "finished"
    assert [push["nonce"] for push in kaggle.pushes] == [item.nonce for item in read_chain(run / "kaggle").sessions]


def test_two_sessions_without_progress_end_the_chain_with_the_log(run):
    state = finish(run, MemoryKaggle([10, "failure", "failure", 10]))
    assert (state.status, len(state.sessions)) == ("failed", 3)
    assert "two sessions in a row made no progress" in state.reason and "log: the last line" in state.reason


def test_a_command_that_training_refuses_ends_the_chain_at_once(run):
    kaggle = MemoryKaggle(["failure of usage", 10])
    state = finish(run, kaggle)
    assert (state.status, state.reason, len(kaggle.pushes)) == ("failed", "a reason", 1)


def test_a_lost_session_makes_the_next_one_shorter_and_leaves_the_newest_output_alone(run, monkeypatch):
    clock = itertools.count(1000.0, 1.0)
    monkeypatch.setattr(time, "time", lambda: next(clock))
    kaggle = MemoryKaggle([10, "lost", 10, 10])
    state = finish(run, kaggle, make_state(limit_seconds=60.0))
    assert state.status == "finished" and slugs(kaggle) == ["a", "b", "b", "a"]
    lost = state.sessions[1]
    assert (lost.status, state.sessions[2].limit_seconds) == ("lost", pytest.approx(0.7 * lost.lived_seconds))


def test_a_killed_session_whose_output_was_left_is_continued_from(run):
    kaggle = MemoryKaggle([10, "killed", 10, 10])
    state = finish(run, kaggle)
    assert state.status == "finished" and slugs(kaggle) == ["a", "b", "a", "b"]
    assert (state.sessions[1].outcome, state.sessions[1].update) == ("killed", 15)
    assert [item.update for item in state.sessions] == [10, 15, 25, 35]


def test_a_session_that_runs_on_is_deleted(run, monkeypatch):
    for module in (polling, pushing):
        monkeypatch.setattr(module, "GRACE", 3)
    kaggle = MemoryKaggle(["endless", 10, 10, 10])
    state = finish(run, kaggle, make_state(limit_seconds=0.01))
    assert kaggle.deleted == ["me/run-abcdef-a"] and state.sessions[0].status == "lost"
    assert kaggle.running == 0


def test_a_refused_push_waits_for_a_place_and_for_the_quota(run):
    kaggle, events = MemoryKaggle(), []
    kaggle.quotas = [1.0, 1e6]
    kaggle.refusals = [KaggleError("Maximum batch GPU session count of 2 reached", "places")]
    assert finish(run, kaggle, on_event=events.append).status == "finished"
    assert any(event.startswith("waiting: 1.0 s of the week's GPU quota") and "2026-12-01" in event for event in events)
    assert any("all GPU sessions" in event for event in events)


def test_a_session_is_never_longer_than_the_quota(run):
    kaggle = MemoryKaggle()
    kaggle.quotas = [50.0, 40.0]  # it shrinks while the session waits for a place
    kaggle.refusals = [KaggleError("Maximum batch GPU session count of 2 reached", "places")]
    finish(run, kaggle)
    assert {push["seconds"] for push in kaggle.pushes} == {40}


def test_sessions_that_begin_anew_are_no_progress(run):
    kaggle = MemoryKaggle([20, -15, -15, 10])
    state = finish(run, kaggle)
    assert state.status == "failed" and [item.has_progress for item in state.sessions] == [True, False, False]


@pytest.mark.parametrize("expired", [3, 4])
def test_a_chain_outlives_failures_of_the_network_and_of_tokens(run, expired):
    kaggle = MemoryKaggle()
    failures = [KaggleError("no route", "temporary")] * 5 + [KaggleError("the token has expired", "account")] * expired
    status = kaggle.status

    def failing(kernel):
        if failures:
            raise failures.pop(0)
        return status(kernel)

    kaggle.status = failing
    if expired == 3:
        assert finish(run, kaggle).status == "finished" and not failures
    else:
        with pytest.raises(KaggleError, match="expired"):
            finish(run, kaggle)


def test_an_unexpected_refusal_is_one_error_and_the_chain_goes_on_later(run):
    kaggle = MemoryKaggle()
    kaggle.refusals = [KaggleError("your phone number is not verified", "rejected")]
    with pytest.raises(KaggleError, match="phone number"):
        finish(run, kaggle)
    assert finish(run, kaggle).status == "finished"


def test_a_stop_file_ends_the_process_and_not_the_session(run):
    kaggle = MemoryKaggle(["endless"])

    def stop(event):
        if "is pushed" in event:
            (run / "kaggle" / "stop").touch()

    started = time.monotonic()
    assert finish(run, kaggle, on_event=stop).status == "stopped"
    assert kaggle.running == 1 and time.monotonic() - started < 5


@pytest.mark.parametrize("when", ["over", "late"])
def test_a_copy_of_the_directory_deletes_no_session_of_the_other_machine(run, tmp_path, monkeypatch, when):
    kaggle = MemoryKaggle([10, 10, "endless", 10])
    monkeypatch.setattr(pushing, "_LEAST_LIMIT", 0.0)
    limit = 1e-3 if when == "late" else 2.0

    def copy_then_stop(text):
        if text.startswith("session 1 is pushed") and not (tmp_path / "copy").exists():
            shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("lock"))
        if text.startswith("session 3 is pushed"):
            raise Kill

    with pytest.raises(Kill):
        finish(run, kaggle, make_state(limit), on_event=copy_then_stop)
    chain_file = tmp_path / "copy" / "kaggle" / "chain.json"
    if when == "late":
        chain = json.loads(chain_file.read_text())
        chain["sessions"][0] |= {"started_at": 1.0, "server_started_at": 1.0}
        chain_file.write_text(json.dumps(chain))
    with pytest.raises(RunError, match="a copy of this directory goes on elsewhere"):
        finish(tmp_path / "copy", kaggle)
    assert kaggle.deleted == [] and len(kaggle.pushes) == 3


@pytest.mark.parametrize("seconds", [1e6, -1e6])
@pytest.mark.parametrize("whose", ["machine", "server", "both"])
def test_session_is_deleted_for_its_age_by_two_clocks(run, monkeypatch, whose, seconds):
    is_late = whose == "both" and seconds > 0
    kaggle = MemoryKaggle(["endless", 10, 10, 10] if is_late else [10, 10, 10])
    jumps = dict.fromkeys(("machine", "server"), 0.0)
    now = time.time
    monkeypatch.setattr(polling.time, "time", lambda: now() + jumps["machine"])
    kaggle.server_time, kaggle.polls = lambda: now() + jumps["server"], 4

    def jump(event):
        if event == "session 1 runs":
            jumps.update(dict.fromkeys(jumps if whose == "both" else [whose], seconds))

    assert finish(run, kaggle, on_event=jump).status == "finished"
    assert len(kaggle.deleted) == is_late
