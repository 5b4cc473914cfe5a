import pytest

from shoestring.training.monitor import events
from shoestring.training.session.ledger import ledger, pauses, sessions, slowest_durations
from tests.answers import runs


def event(kind, session, time, update=0, /, **fields):
    return {"event": kind, "session": session, "time": time, "update": update, **fields}


@pytest.fixture
def records(tmp_path):
    return sessions(events.read(runs.finished(tmp_path) / "events.jsonl"), "finished")


def test_sessions_have_their_end_and_progress(records):
    assert [session.ended for session in records] == ["paused", "killed", "paused", "finished"]
    assert [(session.start_update, session.updates) for session in records] == [
        (0, 1100),
        (1100, 540),
        (1500, 900),
        (2400, 600),
    ]
    assert records[2].reason == "stopped by SIGTERM"
    assert records[2].saving_seconds == pytest.approx(0.004 * records[2].seconds)


def test_kill_loses_updates_since_last_save(records):
    assert [session.redone_updates for session in records] == [0, 140, 0, 0]
    assert records[1].saving_seconds == 3.0  # the sum of its saves, because it has no stop event


def test_pauses_between_sessions(records):
    assert [round(end - start) for start, end in pauses(records)] == [1500, 400, 900]


def test_last_session_without_stop_is_running_or_killed():
    run_events = [event("session", 1, 0.0), event("session", 2, 10.0), event("progress", 2, 20.0, 5)]
    assert [session.ended for session in sessions(run_events, "running")] == ["killed", "running"]
    assert [session.ended for session in sessions(run_events, "paused")] == ["killed", "killed"]
    assert sessions(run_events, "running")[-1].seconds == 10


def test_session_failed_before_start_redoes_nothing():
    run_events = [
        event("session", 1, 0.0),
        event("progress", 1, 10.0, 50),
        event("stop", 2, 20.0, 0, status="failed", reason="no data"),
        event("session", 3, 30.0, 40),
    ]
    first, second, _ = sessions(run_events, "running")
    assert (first.redone_updates, second.redone_updates, second.updates) == (10, 0, 0)
    assert (second.ended, second.reason) == ("failed", "no data")


def test_no_events_give_no_sessions():
    assert sessions([], "unknown") == []


def test_ledger_totals_and_gpu_seconds(records):
    ledger_json = ledger(records)
    assert [entry["ended"] for entry in ledger_json["sessions"]] == ["paused", "killed", "paused", "finished"]
    assert ledger_json["total"]["updates"] == 1100 + 540 + 900 + 600
    assert ledger_json["total"]["seconds"] == pytest.approx(sum(session.seconds for session in records))
    run_events = [
        event("session", 1, 100.0, startup_seconds=20.0, device="cpu", machine={"gpus": [{}, {}]}),
        event("save", 1, 130.0, 5, seconds=4.0, stall_seconds=0.5, kind="full"),
        event("save", 1, 140.0, 5, seconds=1.0, kind="best"),
        event("progress", 1, 150.0, 9, updates=4, seconds=10.0, waiting_seconds=2.0),
    ]
    (entry,) = ledger(sessions(run_events, "paused"))["sessions"]
    assert (entry["seconds"], entry["gpu_seconds"]) == (70.0, 70.0)  # two idle GPUs count once
    assert (entry["saves"], entry["saving_seconds"], entry["stall_seconds"]) == (2, 5.0, 1.5)
    assert (entry["waiting_seconds"], entry["updates"]) == (2.0, 9)


def test_slowest_durations_of_the_last_session_with_data():
    run_events = [
        event("save", 1, 0.0, seconds=50.0, kind="full"),
        event("progress", 1, 0.0, updates=10, seconds=100.0),
        event("save", 2, 0.0, seconds=3.0, kind="full"),
        event("save", 2, 0.0, seconds=2.0, kind="full"),
        event("save", 2, 0.0, seconds=9.0, kind="best"),
    ]
    assert slowest_durations(run_events) == {"save": 3.0, "update": 10.0}
