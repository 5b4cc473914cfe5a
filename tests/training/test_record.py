"""The ledger and the state that a session writes."""

import errno
import json
import shlex

import pytest
from torch import nn

from shoestring.base.errors import RunError
from shoestring.base.settings import Settings
from shoestring.recipe.finding import find
from shoestring.techniques.parameter_count import ParameterCount
from shoestring.training import record as record_module
from shoestring.training import record_files
from shoestring.training.monitor import events as events_module
from shoestring.training.monitor.events import Events
from shoestring.training.record import Record
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.session.deadline import Deadline
from shoestring.training.session.stop import SessionOver
from tests.training.checkpoint.faults import Disk

SETTINGS = Settings(micro_batch=1, precision="fp32")
PARAMETERS = ParameterCount(nn.Linear(2, 3))


class Mine:
    def model(self): ...
    def batch(self, size): ...
    def loss(self, model, batch): ...


def record(run, **deadline):
    return Record(RunDirectory(run), find(Mine()), Deadline(None, **deadline), target="kaggle-t4")


def ledger_sessions(run):
    return json.loads((run / "ledger.json").read_text())["sessions"]


def state(run):
    return json.loads((run / "state.json").read_text())


def test_killed_session_is_in_the_next_ledger(tmp_path):
    with Events(tmp_path / "events.jsonl") as events:
        events.emit("session", update=0, startup_seconds=2.0, device="cuda: Tesla T4")
        events.emit("save", update=4, seconds=1.0, kind="full")
        events.emit("progress", update=9, updates=9, seconds=3.0, waiting_seconds=0.5)
    with record(tmp_path) as session_record:
        session_record.expect(20)
        session_record.started(4, device="cpu", settings=SETTINGS, parameters=PARAMETERS)
        assert [entry["ended"] for entry in ledger_sessions(tmp_path)] == ["killed", "running"]
        session_record.session_ended("paused", "SIGTERM", 7, {})
    killed, current = ledger_sessions(tmp_path)
    assert (killed["updates"], killed["redone_updates"], killed["waiting_seconds"]) == (9, 5, 0.5)
    assert killed["gpu_seconds"] == killed["seconds"] >= 2.0
    assert (current["ended"], current["reason"], current["updates"], current["gpu_seconds"]) == (
        "paused",
        "SIGTERM",
        3,
        0.0,
    )
    assert "session 1 was killed after" in (tmp_path / "events.jsonl").read_text()


def test_deadline_gets_durations_of_earlier_sessions(tmp_path):
    with Events(tmp_path / "events.jsonl") as events:
        events.emit("save", update=4, seconds=7.0, kind="full")
    session_record = record(tmp_path, margin_seconds=1.0)
    assert session_record._deadline.stopping_seconds() == 8.0
    session_record.events.close()


def read_only(*names):
    """Return a strike that makes creating these files and everything beside them fail."""

    def strike(number, name, path):
        if name in ("open", "write", "pwrite") and any(part in path for part in names):
            raise OSError(errno.EROFS, "Read-only file system", path)

    return strike


@pytest.mark.parametrize("names", [["ledger.json"], ["events.jsonl"], ["ledger.json", "events.jsonl", "state.json"]])
def test_failure_to_record_does_not_mask_the_error(tmp_path, names):
    works = True

    def strike(*operation):
        if not works:
            read_only(*names)(*operation)

    def fail_to_record():
        nonlocal works
        with record(tmp_path) as session_record:
            session_record.started(0, device="cpu", settings=SETTINGS, parameters=PARAMETERS)
            works = False
            raise RunError("broken", hint="mend it")

    with Disk(tmp_path, strike).watching(), pytest.raises(RunError, match="broken") as raised:
        fail_to_record()
    assert raised.value.hint == "mend it"
    unwritten = "state.json" in names
    assert state(tmp_path)["status"] == ("running" if unwritten else "failed")
    assert ("state.json could not be written: Read-only" in str(raised.value)) == unwritten


def test_end_that_cannot_be_recorded_is_an_error(tmp_path):
    message = r"session is {}, but .*state\.json could not be written"
    with (
        Disk(tmp_path, read_only("state.json")).watching(),
        pytest.raises(RunError, match=message.format("finished")),
        record(tmp_path) as session_record,
    ):
        session_record.session_ended("finished", "all", 9, {})
    with (
        Disk(tmp_path, read_only("state.json")).watching(),
        pytest.raises(RunError, match=message.format("paused")),
        record(tmp_path),
    ):
        raise SessionOver("SIGTERM")


def test_session_that_cannot_start_keeps_the_progress(tmp_path):
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
        "test_weights": "",
    }
    assert [(entry["ended"], entry["updates"]) for entry in ledger_sessions(tmp_path)] == [("paused", 0)]
    with pytest.raises(RunError), record(tmp_path):
        raise RunError("broken")
    assert (state(tmp_path)["status"], state(tmp_path)["update"]) == ("failed", 5)


def test_failing_disk_for_reports_does_not_end_a_session(tmp_path, monkeypatch, capsys):
    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    with Events(tmp_path / "events.jsonl") as events:
        events.emit("session", update=0)
    with record(tmp_path) as session_record:
        session_record.expect(20)
        with monkeypatch.context() as patch:
            patch.setattr(events_module.os, "write", fail)
            patch.setattr(record_module, "machine", fail)
            patch.setattr(record_files, "write_json", fail)  # of the ledger
            patch.setattr(record_module.StoredState, "write", lambda *_: None)
            session_record.started(4, device="cpu", settings=SETTINGS, parameters=PARAMETERS)
        session_record.session_ended("paused", "SIGTERM", 7, {})
    assert [entry["ended"] for entry in ledger_sessions(tmp_path)] == ["killed", "paused"]
    err = capsys.readouterr().err
    assert "events are not recorded" in err and "ledger.json: [Errno 5]" in err


def test_lost_events_are_counted_at_the_end(tmp_path, monkeypatch, capsys):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with record(tmp_path) as session_record:
        session_record.started(0, device="cpu", settings=SETTINGS, parameters=PARAMETERS)
        with monkeypatch.context() as patch:
            patch.setattr(events_module.os, "write", fail)
            patch.setattr(record_module.StoredState, "write_end", lambda *_: None)
            session_record.session_ended("paused", "SIGTERM", 0, {})
    assert "note: 1 event at the end could not be written to" in capsys.readouterr().err
