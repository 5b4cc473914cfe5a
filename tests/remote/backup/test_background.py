"""The end of a session is not held up by a place that does not take the last copy."""

import threading
import time
from types import SimpleNamespace

import pytest

from shoestring.remote.backup import background
from shoestring.remote.backup.background import Background
from shoestring.remote.backup.urls import parse_url
from tests.remote.backup.example_runs import OTHER_ID, save


@pytest.fixture
def ended():
    """A session that has ended, and does not say when this process must."""
    end = threading.Event()
    end.set()
    return SimpleNamespace(end=end, on_limit=None)


@pytest.fixture
def place(tmp_path, monkeypatch):
    for name, seconds in (("_LAST_SECONDS", 0.3), ("_LAST_SILENT_SECONDS", 0.3), ("_FIRST_WAIT_SECONDS", 0.01)):
        monkeypatch.setattr(background, name, seconds)
    (tmp_path / "file").touch()
    return parse_url(str(tmp_path / "file" / "copies"), "--backup")


def test_copies_that_fail_are_given_up(tmp_path, ended, place, capfd):
    run = save(tmp_path / "run", 1)
    started_at = time.monotonic()
    Background(run, place, OTHER_ID, ended).run()
    assert 0.3 < time.monotonic() - started_at < 30
    messages = capfd.readouterr().err
    assert "the last state of the run (update 1) was not copied to" in messages and "Not a directory" in messages


def test_copy_that_makes_no_progress_is_given_up(tmp_path, ended, place, monkeypatch, capfd):
    given_up = threading.Event()

    def wait_for_answer(*_):
        given_up.wait(60)
        raise TimeoutError("no answer")

    monkeypatch.setattr(background.os, "_exit", lambda _status: given_up.set())
    monkeypatch.setattr(background, "open_store", wait_for_answer)
    started_at = time.monotonic()
    Background(save(tmp_path / "run", 1), place, OTHER_ID, ended).run()
    assert given_up.is_set() and time.monotonic() - started_at < 30
    assert "was not copied to" in capfd.readouterr().err
