import json
import math
import os

from shoestring.monitor import events


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


def test_a_torn_line_is_skipped_and_does_not_swallow_the_next(tmp_path):
    path = tmp_path / "events.jsonl"
    with events.Events(path) as record:
        record.emit("session", update=0)
    with path.open("ab") as file:
        file.write(b'{"time": 1.0, "session": 1, "event": "progr\xc3')
    assert [event["event"] for event in events.read(path)] == ["session"]
    with events.Events(path) as record:
        record.emit("session", update=7)
        record.emit("note", message="on we go")
    assert [event["event"] for event in events.read(path)] == ["session", "session", "note"]


def test_a_line_cut_short_by_a_full_disk_is_lost_and_counted_in_the_next(tmp_path, monkeypatch):
    path = tmp_path / "events.jsonl"
    write = os.write
    with events.Events(path) as record:
        monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:5]))
        record.emit("note", message="lost")
        monkeypatch.setattr(os, "write", write)
        record.emit("note", message="kept")
    assert [(event["message"], event["lost"]) for event in events.read(path)] == [("kept", 1)]


def test_numbers_that_are_not_finite_stay_readable_json(tmp_path):
    path = tmp_path / "events.jsonl"
    with events.Events(path) as record:
        record.emit("evaluation", metrics={"loss": math.nan, "bounds": (-math.inf, math.inf)})

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    metrics = json.loads(path.read_bytes(), parse_constant=refuse)["metrics"]
    assert metrics == {"loss": "nan", "bounds": ["-inf", "inf"]}


def test_reading_leaves_out_what_is_no_event(tmp_path):
    path = tmp_path / "events.jsonl"
    assert list(events.read(path)) == []
    path.write_text('[1]\n{"event": "note"}\n{"event": "note", "session": "1", "time": 0}\n\n')
    assert list(events.read(path)) == []


def happened(event, update, session=1, **fields):
    return {"event": event, "update": update, "session": session, "time": 0.0, **fields}


def test_work_done_again_counts_once():
    killed = [
        happened("session", 0),
        happened("progress", 10),
        happened("save", 10),
        happened("progress", 20),
        happened("evaluation", 20, part="validation"),
        {"event": "note", "message": "stays", "session": 1, "time": 0.0},
    ]
    again = [happened("session", 10, 2), happened("progress", 20, 2)]
    kept = events.current([*killed, *again])
    assert kept == [*killed[:3], killed[5], *again]


def test_two_evaluations_of_one_update_count_once_for_each_part():
    first = happened("evaluation", 20, part="validation")
    test = happened("evaluation", 20, part="test")
    again = happened("evaluation", 20, session=2, part="validation")
    assert events.current([first, test, again]) == [test, again]
