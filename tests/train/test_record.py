"""What a session leaves behind: the ledger, the state and the next step."""

import json
import shlex

import pytest

from shoestring.errors import RunError
from shoestring.monitor.events import Events
from shoestring.recipe.finding import find
from shoestring.session.deadline import Deadline
from shoestring.session.directory import RunDirectory
from shoestring.session.stop import SessionOver
from shoestring.settings import Settings
from shoestring.train.record import Record

SETTINGS = Settings(micro_batch=1, precision="fp32")


class Mine:
    def model(self): ...
    def batch(self, size): ...
    def loss(self, model, batch): ...


def record(run, **deadline):
    return Record(RunDirectory(run), find(Mine()), Deadline(None, **deadline), target="kaggle-t4")


def lines(run):
    return json.loads((run / "ledger.json").read_text())["sessions"]


def state(run):
    return json.loads((run / "state.json").read_text())


def test_a_session_that_died_without_a_word_is_accounted_for_by_the_next(tmp_path):
    with Events(tmp_path / "events.jsonl") as events:
        events.emit("session", update=0, startup_seconds=2.0, device="cuda: Tesla T4")
        events.emit("save", update=4, seconds=1.0, kind="full")
        events.emit("progress", update=9, updates=9, seconds=3.0, waiting_seconds=0.5)
    with record(tmp_path) as account:
        account.expect(20)
        account.started(4, device="cpu", settings=SETTINGS)
        assert [line["ended"] for line in lines(tmp_path)] == ["killed", "running"]
        account.ended("paused", "SIGTERM", 7, {})
    died, own = lines(tmp_path)
    assert (died["updates"], died["redone_updates"], died["waiting_seconds"]) == (9, 5, 0.5)
    assert died["gpu_seconds"] == died["seconds"] >= 2.0
    assert (own["ended"], own["reason"], own["updates"], own["gpu_seconds"]) == ("paused", "SIGTERM", 3, 0.0)
    assert "died without a word" in (tmp_path / "events.jsonl").read_text()


def test_it_tells_the_deadline_what_to_expect(tmp_path):
    with Events(tmp_path / "events.jsonl") as events:
        events.emit("save", update=4, seconds=7.0, kind="full")
    account = record(tmp_path, margin_seconds=1.0)
    assert account._deadline.stopping_seconds() == 8.0
    account.events.close()


def test_a_session_that_could_not_begin_leaves_the_run_where_it_was(tmp_path):
    (tmp_path / "state.json").write_text(json.dumps({"update": 5, "total_updates": 9, "metrics": {"validation": {}}}))
    with pytest.raises(SessionOver), record(tmp_path):
        raise SessionOver("SIGTERM")
    assert state(tmp_path) == {
        "status": "paused",
        "update": 5,
        "total_updates": 9,
        "reason": "SIGTERM",
        "next": shlex.join(["shoestring", "train", "Mine", "--run", str(tmp_path), "--on", "kaggle-t4"]),
        "metrics": {"validation": {}},
    }
    assert [(line["ended"], line["updates"]) for line in lines(tmp_path)] == [("paused", 0)]
    with pytest.raises(RunError), record(tmp_path):
        raise RunError("broken")
    assert (state(tmp_path)["status"], state(tmp_path)["update"]) == ("failed", 5)
