"""Sinks in processes of their own: what they do cannot stop or change a run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shoestring.training.monitor.events import Events
from shoestring.training.monitor.sinks import processes
from shoestring.training.monitor.sinks.processes import writing_logs
from shoestring.training.run_directory import own_files

ODD = (sys.executable, "-m", "tests.training.monitor.sinks.odd_sinks")


@pytest.fixture(autouse=True)
def odd_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_COMMAND", ODD)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def record(path: Path, updates: range) -> None:
    with Events(path) as events:
        events.emit("session", update=updates.start - 1)
        for update in updates:
            events.emit("progress", update=update, loss=0.5)


@pytest.mark.slow
def test_odd_sinks_end_with_a_note(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, folder = tmp_path / "events.jsonl", tmp_path / "logs"
    started = time.monotonic()
    with writing_logs(path, folder, ["Odd", "Raising", "Hanging", "FillingTheDisk", "Odd"]):
        record(path, range(1, 4))
        wait_for(folder / "Odd" / "points.txt")
        wait_for(folder / "Hanging" / "points.txt")
    assert time.monotonic() - started < 30
    assert (folder / "Odd" / "points.txt").read_text().split() == ["1", "2", "3"]
    messages = capfd.readouterr().err
    assert f"{folder}/Raising is not written any more: RuntimeError: no such table; training is not" in messages
    assert (
        f"{folder}/FillingTheDisk is not written any more: the disk is full" in messages or "No space left" in messages
    )
    assert f"{folder}/Hanging may lack the last updates" in messages
    assert f"{folder}/Odd" not in messages and messages.count("note:") == 3
    assert not (folder / "Raising").exists() and not (folder / "FillingTheDisk").exists()  # it frees the disk


def test_last_events_are_written_after_a_kill(tmp_path: Path) -> None:
    """The process that trains is killed as soon as it has recorded an update."""
    path, folder = tmp_path / "events.jsonl", tmp_path / "logs"
    code = f"""
import os, signal
from pathlib import Path
from shoestring.training.monitor.sinks import processes
from tests.training.monitor.sinks.test_processes import record
processes._COMMAND = {ODD!r}
with processes.writing_logs(Path({str(path)!r}), Path({str(folder)!r}), ["Odd"]):
    record(Path({str(path)!r}), range(1, 6))
    os.kill(os.getpid(), signal.SIGKILL)
"""
    process = subprocess.run([sys.executable, "-c", code], env=os.environ, check=False)
    assert process.returncode == -signal.SIGKILL
    wait_for(folder / "Odd" / "points.txt")
    time.sleep(0.5)
    assert (folder / "Odd" / "points.txt").read_text().split() == ["1", "2", "3", "4", "5"]


def test_sink_that_cannot_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "_COMMAND", (str(tmp_path / "absent"),))
    with writing_logs(tmp_path / "events.jsonl", tmp_path / "logs", ["Odd"]):
        pass
    assert "logs/Odd is not written: " in capfd.readouterr().err


def test_folders_of_sinks_are_the_runs_own(tmp_path: Path) -> None:
    from shoestring.base.errors import UsageError
    from shoestring.training.monitor.sinks.names import SINKS

    (tmp_path / "logs").mkdir()
    for name in SINKS:
        link = tmp_path / "logs" / name
        link.symlink_to(tmp_path)
        with pytest.raises(UsageError, match="is a symbolic link"):
            own_files.refuse_links(tmp_path)
        link.unlink()
