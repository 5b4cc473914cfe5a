import pytest

from shoestring.monitor import events
from shoestring.report.sessions import pauses, sessions
from tests.report import runs


def event(kind, session, time, update=0, **fields):
    return {"event": kind, "session": session, "time": time, "update": update, **fields}


@pytest.fixture
def found(tmp_path):
    return sessions(events.read(runs.finished(tmp_path) / "events.jsonl"), "finished")


def test_each_session_says_how_it_ended_and_what_it_got_done(found):
    assert [session.ended for session in found] == ["paused", "killed", "paused", "finished"]
    assert [(session.start_update, session.updates) for session in found] == [
        (0, 1100),
        (1100, 540),
        (1500, 900),
        (2400, 600),
    ]
    assert found[2].reason == "stopped by SIGTERM"
    assert found[2].saving_seconds == pytest.approx(0.004 * found[2].seconds)


def test_a_kill_costs_what_came_after_the_last_save(found):
    assert [session.redone_updates for session in found] == [0, 140, 0, 0]
    assert found[1].saving_seconds is None


def test_pauses_lie_between_sessions(found):
    assert [round(end - begin) for begin, end in pauses(found)] == [1500, 400, 900]


def test_the_last_session_without_a_stop_is_running_or_was_killed():
    record = [event("session", 1, 0.0), event("session", 2, 10.0), event("progress", 2, 20.0, 5)]
    assert [session.ended for session in sessions(record, "running")] == ["killed", "running"]
    assert [session.ended for session in sessions(record, "paused")] == ["killed", "killed"]
    assert sessions(record, "running")[-1].seconds == 10


def test_a_session_that_failed_before_it_began_takes_nothing_back():
    record = [
        event("session", 1, 0.0),
        event("progress", 1, 10.0, 50),
        event("stop", 2, 20.0, 0, status="failed", reason="no data"),
        event("session", 3, 30.0, 40),
    ]
    first, second, _ = sessions(record, "running")
    assert (first.redone_updates, second.redone_updates, second.updates) == (10, 0, 0)
    assert (second.ended, second.reason) == ("failed", "no data")


def test_no_events_are_no_sessions():
    assert sessions([], "unknown") == []
