import dataclasses
import io
import json
import os
import pty
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from shoestring.answers.watch import watching
from shoestring.answers.watch.watcher import Watcher
from shoestring.answers.watch.watching import show
from shoestring.base import streams
from tests.answers import runs


@pytest.fixture
def view(tmp_path):
    return Watcher(runs.just_started(tmp_path), clock=lambda: runs.BEGIN + 1).view()


@pytest.fixture
def output(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(streams, "answer_stream", lambda: stream)
    return stream


def test_json_has_a_line_for_each_change(view, output):
    later = dataclasses.replace(view, seconds_since_event=50.0)
    show([view, later, dataclasses.replace(view, update=5)], as_json=True)
    assert [json.loads(line)["update"] for line in output.getvalue().splitlines()] == [0, 5]


def test_blocks_are_rare_but_the_status_and_the_end_are_shown(view, output):
    updates = [dataclasses.replace(view, update=update) for update in range(5)]
    paused = dataclasses.replace(view, update=9, status="paused")
    show([*updates, paused, dataclasses.replace(paused, update=10)], as_json=False)
    text = output.getvalue()
    assert re.findall(r"update (\d+) of", text) == ["0", "9", "10"]
    assert "\x1b" not in text


def test_ctrl_c_is_quiet(view, output):
    def views():
        yield view
        raise KeyboardInterrupt

    show(views(), as_json=False)
    assert output.getvalue().count("temporal  running") == 1


def test_watching_ends_when_the_reader_has_gone(view, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    stream = streams.ReportStream(os.fdopen(writer, "w"))
    monkeypatch.setattr(streams, "answer_stream", lambda: stream)

    def views():
        yield view
        pytest.fail("the next view is not asked for")

    show(views(), as_json=True)
    stream.finish()
    stream.close()


def read_all(terminal):
    """Return what is written to a pseudo-terminal until its other end is closed."""
    content = b""
    with suppress(OSError):
        while block := os.read(terminal, 1 << 16):
            content += block
    return content.decode()


def test_terminal_is_redrawn(view, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    leader, follower = pty.openpty()
    with ThreadPoolExecutor() as threads, os.fdopen(follower, "w") as stream:
        output = threads.submit(read_all, leader)
        monkeypatch.setattr(streams, "answer_stream", lambda: stream)
        monkeypatch.setattr(watching, "_print_blocks", lambda *_: pytest.fail("this is a terminal"))
        show([view, dataclasses.replace(view, update=7)], as_json=False)
        stream.close()
        text = output.result(10)
    os.close(leader)
    assert "\x1b[1A" in text and "update 7 of" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is visible again
