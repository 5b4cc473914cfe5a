"""The record that is followed is the record that the report reads at once."""

import json
import shutil

import pytest

from shoestring.answers.report.run import read
from shoestring.answers.watch import record as module
from shoestring.answers.watch.record import Record
from tests.answers import runs


@pytest.fixture
def whole(tmp_path):
    return runs.finished(tmp_path / "whole")


def follow(source, copy, cuts):
    """Follow a copy of the record `source` while it grows to each number of bytes."""
    content = source.read_bytes()
    record = Record(copy)
    with copy.open("wb") as file:
        for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
            file.write(content[start:end])
            file.flush()
            record.read_new()
    return record.summary


def facts(summary):
    curve = summary.loss
    evaluations = [(entry.update, entry.part, entry.metrics["loss"]) for entry in summary.evaluations.values()]
    return len(curve), curve.columns(50), evaluations, summary.update, summary.peak_bytes, list(summary.history)


def test_record_that_grows_has_the_numbers_of_the_report(whole, tmp_path):
    events = whole / "events.jsonl"
    size = events.stat().st_size
    summary = follow(events, tmp_path / "copy", range(1, size, size // 97))
    run = read(whole)
    progress = run.events_of("progress")
    assert len(summary.loss) == len(progress) < len([event for event in run.events if event["event"] == "progress"])
    assert summary.loss.last() == progress[-1]["loss"]
    evaluations = [(event["update"], event["part"]) for event in run.events_of("evaluation")]
    assert list(summary.evaluations) == evaluations
    assert summary.peak_bytes == run.measured_bytes
    assert [session.status for session in summary.sessions.values()] == ["paused", "", "paused", "finished"]
    assert facts(follow(events, tmp_path / "at once", [])) == facts(summary)


def test_slices_are_as_good_as_the_whole(whole, tmp_path, monkeypatch):
    at_once = facts(follow(whole / "events.jsonl", tmp_path / "copy", []))
    monkeypatch.setattr(module, "_SLICE_BYTES", 1000)
    assert facts(follow(whole / "events.jsonl", tmp_path / "slices", [])) == at_once


def test_nothing_is_read_twice(whole, monkeypatch):
    record = Record(whole / "events.jsonl")
    record.read_new()
    monkeypatch.setattr(module, "read_complete", lambda *_, **__: pytest.fail("the record was read again"))
    record.read_new()


def test_another_record_is_read_from_its_beginning(whole, tmp_path):
    events = tmp_path / "events.jsonl"
    shutil.copy(whole / "events.jsonl", events)
    record = Record(events)
    record.read_new()
    replacement = tmp_path / "replacement"
    line = {"time": 1.0, "session": 1, "event": "progress", "update": 2, "updates": 2, "loss": 0.5}
    replacement.write_text(json.dumps(line) + "\n")
    replacement.replace(events)
    record.read_new()
    assert (record.summary.update, len(record.summary.loss)) == (2, 1)
    events.unlink()
    record.read_new()
    assert len(record.summary.loss) == 0


def test_rewards_and_restored_checkpoints(tmp_path):
    lines = [
        {"event": "progress", "update": update, "updates": 1, "loss": None, "metrics": {"reward": update / 10, "kl": 1}}
        for update in (1, 2, 3)
    ]
    lines.append({"event": "oom", "update": 3, "during": "update", "micro_batch": 4, "done": "2", "back_to": 1})
    events = tmp_path / "events.jsonl"
    events.write_text("".join(json.dumps({"time": 1.0, "session": 1, **line}) + "\n" for line in lines))
    record = Record(events)
    record.read_new()
    assert list(record.summary.rewards) == ["reward"]
    assert record.summary.rewards["reward"].last() == 0.1
    assert record.summary.loss.last() is None
    assert record.summary.history[-1][1].endswith("continued with 2; resumed from the checkpoint of update 1")
