"""Waiting for a process: lines of progress, and a limit."""

import os
import threading
import time

import pytest

from shoestring.base.errors import TraceError, UsageError
from shoestring.planning.trace import waiting


def test_a_long_trace_shows_progress_and_ends_at_its_limit(capsys, monkeypatch):
    monkeypatch.setattr(waiting, "PROGRESS_SECONDS", 0.05)
    reading, writing = os.pipe()
    with os.fdopen(reading) as responses:
        with pytest.raises(TraceError, match=r"tracing rwkv has not ended within 0\.2 seconds") as caught:
            waiting.wait(responses, "tracing rwkv", 0.2)
        assert "seq_len" in caught.value.hint and "SHOESTRING_TRACE_SECONDS=0.8" in caught.value.hint
        lines = capsys.readouterr().err.splitlines()
        assert lines and all(line == "tracing rwkv: 0 s of at most 0.2 s" for line in lines)
        os.write(writing, b"{}\n")
        waiting.wait(responses, "tracing rwkv", 0.2)
        assert responses.readline() == "{}\n" and not capsys.readouterr().err
        os.close(writing)
        waiting.wait(responses, "tracing rwkv")  # the end of the stream


def test_the_limit_is_a_setting_of_the_environment(monkeypatch):
    monkeypatch.delenv(waiting.LIMIT_VARIABLE, raising=False)
    assert waiting.limit_seconds() == waiting.LIMIT_SECONDS
    monkeypatch.setenv(waiting.LIMIT_VARIABLE, "90")
    assert waiting.limit_seconds() == 90
    for text in ("-1", "soon", "nan"):
        monkeypatch.setenv(waiting.LIMIT_VARIABLE, text)
        with pytest.raises(UsageError, match=f"{waiting.LIMIT_VARIABLE}={text}"):
            waiting.limit_seconds()


def test_a_stream_that_another_thread_closes_ends_the_wait():
    read_end, write_end = os.pipe()
    responses = os.fdopen(read_end, "rb")
    threading.Timer(0.1, responses.close).start()
    started = time.monotonic()
    waiting.wait(responses, "tracing", 20)
    assert time.monotonic() - started < 10
    os.close(write_end)
