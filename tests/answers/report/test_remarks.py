"""The remarks section of the report page."""

from shoestring.answers.document import Document
from shoestring.answers.renderers.terminal.document import plain
from shoestring.answers.report.run import read
from shoestring.answers.report.sections import remarks
from shoestring.training.monitor.events import Events


def test_out_of_memory_and_overflows_are_described(tmp_path):
    with Events(tmp_path / "events.jsonl") as writer:
        writer.emit("session", update=0)
        writer.emit("progress", update=2, skipped=2)
        writer.emit("oom", update=4, during="optimizer step", failure="", micro_batch=8, done="microbatch 4", back_to=3)
        writer.emit("progress", update=3, skipped=1)
    text = plain(Document(title="", content=[*remarks(read(tmp_path))]), width=400)
    assert "out of memory in optimizer step at update 4 with microbatch 8: continued with microbatch 4" in text
    assert "resumed from the checkpoint of update 3" in text
    assert "3 optimizer steps skipped" in text


def test_lines_that_are_no_events_are_counted(tmp_path):
    with Events(tmp_path / "events.jsonl") as writer:
        writer.emit("session", update=0)
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"event": "note", "session": 1, "time": null}\n[\n')
    text = plain(Document(title="", content=[*remarks(read(tmp_path))]), width=400)
    assert "2 lines of events.jsonl cannot be used" in text
    assert "the first is line 2: time: 'None' is not a time in unix seconds" in text
