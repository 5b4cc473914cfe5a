"""The rest of a chain, from the plan that it began with and from what its sessions have left."""

import json

import pytest

from shoestring.planning.estimate.span import Span
from shoestring.planning.sessions import Work, sessions
from shoestring.remote.kaggle.chain_file import SessionRecord
from shoestring.remote.kaggle.forecast import forecast, write_first_plan
from tests.remote.kaggle.memory_kaggle import make_state

LIMIT = 10_000.0
HOURS = (LIMIT - 300) / 3600
"""Of training in a session: the end of it is for leaving the output."""


def make_work(update_seconds, evaluation_seconds=0.0, start_seconds=60.0):
    evaluation = {"evaluation": Span.exactly(evaluation_seconds)} if evaluation_seconds else {}
    return Work(
        update={"forward": Span.exactly(update_seconds)},
        epoch_end=evaluation,
        start={"starting": Span.exactly(start_seconds)},
        first={"answers": Span.exactly(500.0)},
        restart={"loading weights": Span.exactly(5.0)},
    )


def plan_of(work, updates, count):
    seconds = work.update["forward"].seconds
    time = {"update_seconds": seconds, "epoch_seconds": 100 * seconds, "total_seconds": updates * seconds}
    return {"time": time, "work": work.json(), "sessions": [{}] * count}


def event(kind, session=1, **fields):
    return {"event": kind, "session": session, "time": 1.7e9, **fields}


@pytest.fixture
def chain(tmp_path):
    """A state after a session of 5,000 of 12,000 updates, and the folder with what it has left."""
    state = make_state(LIMIT)
    first = SessionRecord(number=1, nonce="0" * 32, slug="run-abcdef-a", limit_seconds=LIMIT, status="ended")
    first.update, first.total_updates, first.checkpoint, first.has_progress = 5000, 12_000, "update-00005000", True
    state.sessions, state.status = [first], "preparing"
    (tmp_path / "run").mkdir()
    write_first_plan(tmp_path, plan_of(make_work(1.2), 10_000, 2))
    (tmp_path / "run" / "plan.json").write_text(json.dumps({"plan": plan_of(make_work(1.0, 7.0), 12_000, 2)}))
    return state, tmp_path


def write_events(folder, *events):
    (folder / "run" / "events.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in events))


def test_before_a_session_has_ended_it_is_the_plan(chain):
    state, folder = chain
    state.sessions = []
    for name in ("plan.json", "events.jsonl"):
        (folder / "run" / name).unlink(missing_ok=True)
    answer = forecast(state, folder)
    assert (answer.source, answer.updates, answer.total_updates, answer.update_seconds) == ("plan", 0, 10_000, None)
    planned = sessions(make_work(1.2), total_updates=10_000, updates_per_epoch=100, session_hours=HOURS)
    assert (answer.sessions_left, answer.hours_left) == (len(planned), sum(session.hours for session in planned))
    assert answer.text == "planned 2 sessions for 10,000 updates of 1.2 s, 3 h 30 min; nothing is measured yet"
    (folder / "plan.json").unlink()
    assert forecast(state, folder) is None  # a chain of an earlier version


def test_the_rest_is_computed_from_what_was_measured(chain):
    state, folder = chain
    write_events(
        folder,
        event("session", startup_seconds=80.0),
        event("progress", updates=10, seconds=100.0),  # with one-time work
        event("progress", updates=100, seconds=150.0),
        event("evaluation", part="validation", seconds=20.0),
        event("evaluation", part="test", seconds=1000.0),
        event("session", session=2, startup_seconds=100.0),
        event("progress", session=2, updates=10, seconds=90.0),
        event("progress", session=2, updates=300, seconds=450.0),
        event("evaluation", session=2, part="validation", seconds=30.0),
    )
    answer = forecast(state, folder)
    assert (answer.update_seconds, answer.planned_update_seconds, answer.source) == (1.5, 1.2, "measured")
    assert (answer.updates, answer.total_updates, answer.planned_total_updates) == (5000, 12_000, 10_000)
    measured = make_work(1.5, 25.0, 90.0)
    rest = Work(**{**vars(measured), "first": measured.restart})
    planned = sessions(rest, total_updates=7000, updates_per_epoch=100, session_hours=HOURS, weekly_hours=30)
    assert (answer.sessions_left, answer.hours_left) == (len(planned), sum(session.hours for session in planned))
    first, second = answer.text.splitlines()
    assert first == "planned 2 sessions for 10,000 updates of 1.2 s; measured 1.5 s: 2 more sessions, 3 h 27 min"
    assert second.startswith("the plan assumed 10,000 updates") and second.endswith("the run has 12,000")
    state.sessions[0].total_updates = 10_150
    assert len(forecast(state, folder).text.splitlines()) == 1
    state.status = "finished"
    assert (forecast(state, folder).sessions_left, forecast(state, folder).hours_left) == (0, 0)
    assert forecast(state, folder).text == "planned 2 sessions for 10,000 updates of 1.2 s; measured 1.5 s"


def test_without_plans_it_is_what_was_measured_alone(chain):
    state, folder = chain
    write_events(folder, event("progress", updates=10, seconds=5.0))
    for file in (folder / "plan.json", folder / "run" / "plan.json"):
        file.write_text("{")
    answer = forecast(state, folder)
    assert answer.text == "measured 500 ms: 1 more session, 58 min 20 s" and answer.planned_sessions is None
    write_events(folder, event("progress", updates=1, seconds=20_000.0))
    assert forecast(state, folder).sessions_left is None  # no session is long enough
