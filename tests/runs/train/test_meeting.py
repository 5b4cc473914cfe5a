"""What the processes of a launcher agree on, over a store that the first one opens."""

import socket
import threading
from types import SimpleNamespace

import pytest

from shoestring.base.errors import RunError, ShoestringError, UsageError
from shoestring.runs.train import meeting
from shoestring.runs.train.meeting import Meeting, leading
from shoestring.training.engine.parallel.joining import open_store
from shoestring.training.engine.parallel.launcher import Launcher
from shoestring.training.run_directory.directory import RunDirectory

STOP = SimpleNamespace(reason=lambda: None)


@pytest.fixture(autouse=True)
def store(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    open_store.cache_clear()
    monkeypatch.setattr(meeting, "_SIGHT_SECONDS", 0.2)
    monkeypatch.setattr(meeting, "_PATIENCE_SECONDS", 0.2)


def meet(lead, follow):
    """Call both functions with their launchers at the same time, and return their results or errors."""
    results = [None, None]

    def call(rank, act):
        try:
            results[rank] = act(Launcher(rank=rank, size=2))
        except ShoestringError as error:
            results[rank] = error

    threads = [threading.Thread(target=call, args=pair) for pair in enumerate((lead, follow))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def leader(path, prepare=lambda: None, **announced):
    def lead(launcher):
        with leading(launcher, RunDirectory(path), STOP) as announce:
            prepare()
            announce(**{"trains": True, **announced})
        return "leads"

    return lead


def follower(path):
    def follow(launcher):
        connection = Meeting(launcher, STOP)
        announcement = connection.wait()
        if announcement.trains:
            connection.require_shared(RunDirectory(path), announcement)
        return announcement.trains

    return follow


def test_all_train_in_the_directory_that_all_see(tmp_path):
    assert meet(leader(tmp_path), follower(tmp_path)) == ["leads", True]
    assert list(tmp_path.iterdir()) == []


def test_finished_run_is_not_trained(tmp_path):
    assert meet(leader(tmp_path, trains=False), follower(tmp_path / "elsewhere")) == ["leads", False]


def test_directory_that_is_not_shared_is_an_error_of_all(tmp_path):
    errors = meet(leader(tmp_path), follower(tmp_path / "elsewhere"))
    assert [type(error) for error in errors] == [UsageError] * 2
    assert all("is not seen by process 1" in error.message for error in errors)
    assert list(tmp_path.iterdir()) == []


def test_error_of_the_first_process_is_announced(tmp_path):
    def fail():
        raise UsageError("no such option")

    errors = meet(leader(tmp_path, fail), follower(tmp_path))
    assert [(type(error), error.message) for error in errors] == [
        (UsageError, "no such option"),
        (UsageError, "process 0: no such option"),
    ]


def test_process_that_waits_for_one_that_has_ended_leaves_when_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(STOP, "reason", lambda: "SIGTERM")
    _, error = meet(lambda launcher: Meeting(launcher, STOP), follower(tmp_path))
    assert isinstance(error, RunError) and error.message.startswith("SIGTERM, before all processes")
