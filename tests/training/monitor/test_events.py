import errno
import json
import math
import os

import pytest

from shoestring.base.errors import UsageError
from shoestring.training.monitor import events


def test_events_have_time_session_and_their_fields(tmp_path):
    with events.Events(tmp_path / "events.jsonl") as record:
        record.emit("session", update=0)
        record.emit("note", message="zwölf\nlines")
    session, note = events.read(tmp_path / "events.jsonl")
    assert session["session"] == note["session"] == 1
    assert isinstance(note["time"], float)
    assert note["event"] == "note"
    assert note["message"] == "zwölf\nlines"


def test_each_event_is_one_write(tmp_path, monkeypatch):
    writes = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: writes.append(data) or write(file, data))
    with events.Events(tmp_path / "events.jsonl") as record:
        record.emit("progress", update=1)
        record.emit("progress", update=2)
    assert [data.count(b"\n") for data in writes] == [1, 1]


def test_sessions_are_counted_from_the_record(tmp_path):
    path = tmp_path / "events.jsonl"
    for expected in (1, 2, 3):
        with events.Events(path) as record:
            assert record.session == expected
            record.emit("session", update=0)


def test_incomplete_line_is_skipped_and_next_line_survives(tmp_path):
    path = tmp_path / "events.jsonl"
    with events.Events(path) as record:
        record.emit("session", update=0)
    with path.open("ab") as file:
        file.write(b'{"time": 1.0, "session": 1, "event": "progr\xc3')
    assert [event["event"] for event in events.read(path)] == ["session"]
    with events.Events(path) as record:
        record.emit("session", update=7)
        record.emit("note", message="continued")
    assert [event["event"] for event in events.read(path)] == ["session", "session", "note"]


def test_next_event_counts_lines_lost_on_full_disk(tmp_path, monkeypatch):
    path = tmp_path / "events.jsonl"
    write = os.write
    with events.Events(path) as record:
        monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:5]))
        record.emit("note", message="lost")
        monkeypatch.setattr(os, "write", write)
        record.emit("note", message="written")
    assert [(event["message"], event["lost"]) for event in events.read(path)] == [("written", 1)]


def test_failing_disk_loses_events_and_is_reported_once(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    path, messages = tmp_path / "events.jsonl", []
    with events.Events(path, messages.append) as record:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", fail)
            record.emit("note", message="lost")
            record.emit("note", message="lost")
        record.emit("note", message=os.fsdecode(b"not UTF-8: \xff"))
    assert messages == ["events are not recorded, and training continues: [Errno 5] Input/output error"]
    assert [(event["message"], event["lost"]) for event in events.read(path)] == [("not UTF-8: \udcff", 2)]


def test_numbers_that_are_not_finite_stay_readable_json(tmp_path):
    path = tmp_path / "events.jsonl"
    with events.Events(path) as record:
        record.emit("evaluation", metrics={"loss": math.nan, "bounds": (-math.inf, math.inf)})

    def reject_constant(name):
        raise AssertionError(f"{name} is not JSON")

    metrics = json.loads(path.read_bytes(), parse_constant=reject_constant)["metrics"]
    assert metrics == {"loss": "nan", "bounds": ["-inf", "inf"]}


def test_reading_skips_lines_that_are_not_events(tmp_path):
    path = tmp_path / "events.jsonl"
    assert list(events.read(path)) == []
    path.write_text('[1]\n{"event": "note"}\n{"event": "note", "session": "1", "time": 0}\n\n')
    assert list(events.read(path)) == []


def make_event(event, update, session=1, **fields):
    return {"event": event, "update": update, "session": session, "time": 0.0, **fields}


def test_repeated_work_counts_once():
    killed = [
        make_event("session", 0),
        make_event("progress", 10),
        make_event("save", 10),
        make_event("progress", 20),
        make_event("evaluation", 20, part="validation"),
        {"event": "note", "message": "stays", "session": 1, "time": 0.0},
    ]
    repeated = [make_event("session", 10, 2), make_event("progress", 20, 2)]
    assert events.current([*killed, *repeated]) == [*killed[:3], killed[5], *repeated]


def test_repeated_evaluations_count_once_per_part():
    first = make_event("evaluation", 20, part="validation")
    test = make_event("evaluation", 20, part="test")
    repeated = make_event("evaluation", 20, session=2, part="validation")
    assert events.current([first, test, repeated]) == [test, repeated]


@pytest.mark.parametrize(
    "fields",
    [
        *({"time": value} for value in (None, math.nan, -1, 1e308, 10**400)),
        *({"session": value} for value in ("x", True, -1, 10**400)),
        *({name: value} for name in ("update", "back_to") for value in ([], -1, 0.5, None)),
        {"seconds": 1e300 / 1e200},
    ],
)
def test_line_with_another_type_is_skipped_and_named(tmp_path, fields):
    path, skipped = tmp_path / "events.jsonl", []
    lines = [{"event": "note", "session": 1, "time": 1}, {"event": "note", "session": 1, "time": 1, **fields}]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert list(events.read(path, on_skipped=lambda *line: skipped.append(line))) == lines[:1]
    [(number, reason)] = skipped
    assert number == 2 and reason.startswith((*fields, "no JSON", "the number"))


def test_endless_line_and_bytes_that_are_no_text_are_skipped(tmp_path):
    path = tmp_path / "events.jsonl"
    event = b'{"event": "note", "session": 1, "time": 1}'
    path.write_bytes(b"\n".join([b"\0" * 100, b"x" * (5 << 20), b"[" * 100_000, b'{"a": "\xff"}', event]))
    assert len(list(events.read(path))) == 1


def test_record_that_is_no_file_is_an_error(tmp_path):
    os.mkfifo(tmp_path / "events.jsonl")
    with pytest.raises(UsageError, match=r"events\.jsonl cannot be read: it is a pipe"):
        list(events.read(tmp_path / "events.jsonl"))


def test_an_event_beside_a_session_is_in_the_file_that_the_session_writes(tmp_path):
    """A hard link (cp -al) that is made while it trains does not divide the record."""
    path = tmp_path / "events.jsonl"
    with events.Events(path) as session:
        session.emit("session")
        (tmp_path / "link").hardlink_to(path)
        events.append(path, "backup", is_shared=True, update=1)
        session.emit("stop")
    assert [event["event"] for event in events.read(path)] == ["session", "backup", "stop"]
    events.append(path, "restart", update=1)  # nobody writes now: the copy stays as it is
    assert len(list(events.read(tmp_path / "link"))) == 3 and len(list(events.read(path))) == 4
