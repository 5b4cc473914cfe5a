import pytest

from shoestring.monitor import events
from shoestring.session.ledger import ledger, pauses, sessions, slowest
from tests.report import runs


def event(kind, session, time, update=0, /, **fields):
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
    assert found[1].saving_seconds == 3.0  # the sum of its saves, for it could not say so at its end


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


def test_the_ledger_counts_what_a_quota_counts(found):
    written = ledger(found)
    assert [line["ended"] for line in written["sessions"]] == ["paused", "killed", "paused", "finished"]
    assert written["total"]["updates"] == 1100 + 540 + 900 + 600
    assert written["total"]["seconds"] == pytest.approx(sum(session.seconds for session in found))
    record = [
        event("session", 1, 100.0, startup_seconds=20.0, device="cpu", machine={"gpus": [{}, {}]}),
        event("save", 1, 130.0, 5, seconds=4.0, stall_seconds=0.5, kind="full"),
        event("save", 1, 140.0, 5, seconds=1.0, kind="best"),
        event("progress", 1, 150.0, 9, updates=4, seconds=10.0, waiting_seconds=2.0),
    ]
    (line,) = ledger(sessions(record, "paused"))["sessions"]
    assert (line["seconds"], line["gpu_seconds"]) == (70.0, 70.0)  # two GPUs that lie idle are billed once
    assert (line["saves"], line["saving_seconds"], line["stall_seconds"]) == (2, 5.0, 1.5)
    assert (line["waiting_seconds"], line["updates"]) == (2.0, 9)


def test_a_session_expects_the_slowest_of_the_last_one_that_knew():
    record = [
        event("save", 1, 0.0, seconds=50.0, kind="full"),
        event("progress", 1, 0.0, updates=10, seconds=100.0),
        event("save", 2, 0.0, seconds=3.0, kind="full"),
        event("save", 2, 0.0, seconds=2.0, kind="full"),
        event("save", 2, 0.0, seconds=9.0, kind="best"),
    ]
    assert slowest(record) == {"save": 3.0, "update": 10.0}
