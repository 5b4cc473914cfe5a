"""Outputs: what comes is verified, what came damaged comes again, and the directory has a whole run or none."""

import dataclasses
import errno
import hashlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from shoestring.base.errors import CheckpointError, RunError, UsageError
from shoestring.remote.kaggle import fetching
from shoestring.remote.kaggle.kernel.session_file import OutputFile, SessionFile
from shoestring.training.run_directory.stored import StoredState
from tests.remote.kaggle.memory_kaggle import MemoryKaggle

CONTENTS = {"run/plan.json": b"{}", "run/light/model": b"weights", "run/other/x": b"no part of a run", "note": b"n"}


class Outputs:
    """A client whose downloads are damaged in turn as `faults` says."""

    def __init__(self, *faults):
        self.faults = list(faults)
        self.downloads = 0
        self.contents = CONTENTS

    pause_seconds = 0.0

    def download(self, kernel, files):
        fault = self.faults.pop(0) if self.faults else ""
        for name, path in files.items():
            self.downloads += 1
            content = {"error page": b"<html>", "cut": self.contents[name][:1]}.get(fault, self.contents[name])
            if fault != "missing":
                Path(path).write_bytes(content)


def session_of(contents=CONTENTS):
    files = {
        name: OutputFile(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        for name, content in contents.items()
    }
    return SessionFile(nonce="0" * 32, session=1, status="finished", facts={}, files=files)


@pytest.mark.parametrize("fault", ["error page", "cut", "missing", ""])
def test_damaged_downloads_are_repeated(tmp_path, fault):
    fetching.fetch_run(Outputs(fault), "me/k", session_of(), tmp_path)
    assert (tmp_path / "light" / "model").read_bytes() == b"weights"
    assert {path.name for path in tmp_path.iterdir()} == {"plan.json", "light", "kaggle", "lock"}


def test_a_file_that_stays_damaged_is_one_error_and_leaves_no_run(tmp_path):
    with pytest.raises(CheckpointError) as error:
        fetching.fetch_run(Outputs(*["error page"] * 40), "me/k", session_of(), tmp_path)
    assert any("run/light/model" in problem for problem in error.value.problems)
    assert not (tmp_path / "plan.json").exists()


def test_a_full_disk_is_one_error_before_and_while_files_come(tmp_path, monkeypatch):
    class FullDisk(Outputs):
        def download(self, kernel, files):
            super().download(kernel, files)
            raise OSError(errno.ENOSPC, "No space left on device")

    client = FullDisk()
    with pytest.raises(RunError, match="No space left on device") as error:
        fetching.fetch_run(client, "me/k", session_of(), tmp_path)
    assert "free disk space there" in error.value.hint and client.downloads == 2
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=8))
    with pytest.raises(RunError, match="9 B are still to be downloaded, but 8 B are free"):
        fetching.fetch_run(Outputs(), "me/k", session_of(), tmp_path)
    monkeypatch.undo()
    fetching.fetch_run(Outputs(), "me/k", session_of(), tmp_path)
    assert (tmp_path / "light" / "model").read_bytes() == b"weights"


def test_fetching_goes_on_after_a_kill(tmp_path, monkeypatch):
    class Kill(BaseException):
        pass

    moves, replace = [], Path.replace

    def killed(self, target):
        if Path(target).parent == tmp_path and Path(target).name in ("light", "plan.json"):
            moves.append(target)
            if len(moves) == 2:
                raise Kill
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", killed)
    outputs = Outputs()
    with pytest.raises(Kill):
        fetching.fetch_run(outputs, "me/k", session_of(), tmp_path)
    assert (tmp_path / "light").exists() and not (tmp_path / "plan.json").exists()
    fetching.fetch_run(outputs, "me/k", session_of(), tmp_path)
    assert (tmp_path / "plan.json").exists() and outputs.downloads == 2


def test_a_directory_with_another_run_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("")
    with pytest.raises(UsageError, match=r"is not empty: thesis.txt"):
        fetching.require_usable(tmp_path)
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(UsageError, match="not begun by shoestring kaggle start"):
        fetching.require_usable(tmp_path)


def test_a_run_that_was_trained_further_here_is_not_replaced(tmp_path):
    StoredState(status="paused", update=11).write(tmp_path / "state.json")
    session = dataclasses.replace(session_of(), update=10)
    with pytest.raises(UsageError, match="at update 11, but what Kaggle has is at update 10"):
        fetching.fetch_run(Outputs(), "me/k", session, tmp_path)
    assert not (tmp_path / "plan.json").exists()
    fetching.fetch_run(Outputs(), "me/k", dataclasses.replace(session, update=11), tmp_path)
    assert (tmp_path / "plan.json").exists()


def test_a_session_file_of_another_session_is_none(tmp_path):
    kaggle = MemoryKaggle()
    kaggle.kernels["me/k"] = {"nonce": "a" * 32, "over": True, "behavior": 10, "update": 10, "first": 0, "session": 1}
    file = tmp_path / "session.json"
    output = fetching.inspect_output(kaggle, "me/k", "b" * 32, file)
    assert output.session is None and output.is_known and not file.exists()
    output = fetching.inspect_output(kaggle, "me/k", "a" * 32, file)
    assert output.session.update == 10 and output.newest_checkpoint == ("update-00000001", 1) and file.exists()
    kaggle.download = lambda kernel, files: Path(files["shoestring-session.json"]).write_bytes(b"<html>")
    assert not fetching.inspect_output(kaggle, "me/k", "a" * 32, file).is_known


def test_a_checkpoint_that_kaggle_has_damaged_is_left_out_of_a_finished_run(tmp_path):
    contents = {**CONTENTS, "run/checkpoints/update-00000001/a": b"1", "run/checkpoints/update-00000002/a": b"2"}
    session = session_of(contents)
    outputs, notes = Outputs(), []
    outputs.contents = {**contents, "run/checkpoints/update-00000002/a": b"3"}
    fetching.fetch_run(outputs, "me/k", session, tmp_path, notes.append)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["update-00000001"]
    assert "run/checkpoints/update-00000002" in notes[0]
