"""Links, special files, foreign files and leftovers in a run's directory."""

import os
import subprocess
import sys

import pytest

import shoestring
from shoestring.base.errors import UsageError
from shoestring.runs.calibrate import load_calibration
from shoestring.training.checkpoint import light
from shoestring.training.checkpoint.store import Store
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.lock import locked
from shoestring.training.run_directory.stored import StoredPlan

OWN = [
    *(
        "lock",
        ".lock",
        "plan.json",
        "state.json",
        "ledger.json",
        "events.jsonl",
        "run.toml",
        "report.html",
        "report.html.part",
    ),
    *("checkpoints", "light", "best", "failed", ".state.json.7", ".report.html.7", ".trainer"),
    *("light/model.safetensors", "light/update-00000004", "best/manifest.json", "best/.model.safetensors.next"),
    *("checkpoints/update-00000002", "checkpoints/.writing-00000002-1", "checkpoints/.replaced-00000002"),
    *("failed/update-3.json", "failed/traceback.txt", "checkpoints/update-00000001/state.json"),
]


@pytest.fixture
def run(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.create()
    StoredPlan(recipe="temporal").write(run.plan_file)
    return run


@pytest.fixture
def notes(tmp_path):
    """A file of the user outside of the run."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.txt").write_text("mine")
    return tmp_path / "notes"


@pytest.mark.parametrize("name", OWN)
def test_link_is_refused_by_every_verb_before_anything_is_changed(run, notes, name):
    path = run.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(notes / "notes.txt" if "." in path.name else notes)
    before = sorted(run.path.rglob("*"))
    verbs = [
        lambda: shoestring.train("temporal", run=run.path, on="cpu"),
        lambda: load_calibration(run.path),
        *([lambda: shoestring.report(run.path), lambda: shoestring.evaluate(run.path)] if name != "plan.json" else []),
    ]
    for verb in verbs:
        with pytest.raises(UsageError, match="is a symbolic link to") as error:
            verb()
        assert str(path) in error.value.message and str(notes) in error.value.message and "remove" in error.value.hint
    assert sorted(run.path.rglob("*")) == before
    assert (notes / "notes.txt").read_text() == "mine" and len(list(notes.iterdir())) == 1


def test_run_directory_and_files_of_the_user_may_be_links(run, notes, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(run.path)
    for name in ("data", "model.safetensors"):
        (run.path / name).symlink_to(notes)
    RunDirectory(link).create()


def test_pipe_is_refused(run):
    os.mkfifo(run.state_file)
    with pytest.raises(UsageError, match="neither a file nor a directory"):
        run.refuse_links()


def test_foreign_content_of_a_lock_is_not_overwritten(run, notes):
    os.link(notes / "notes.txt", run.path / "lock")
    with pytest.raises(UsageError, match="other content than the lock"), run.locked():
        pass
    (run.path / "lock").unlink()
    (run.path / "lock").symlink_to(notes / "notes.txt")
    with pytest.raises(UsageError, match="symbolic link"), locked(run.path):
        pass
    assert (notes / "notes.txt").read_text() == "mine"


def test_lock_file_of_another_user_does_not_block(run, tmp_path, monkeypatch):
    """On a filesystem without locks, whose file `.lock` is created under a lock of the machine."""
    from shoestring.training.run_directory import lock

    monkeypatch.setattr(lock.tempfile, "gettempdir", lambda: str(tmp_path))
    path = tmp_path / f"shoestring-{os.getuid()}.lock"
    holder = subprocess.Popen(["flock", str(path), "sleep", "60"])
    try:
        while not path.exists():
            pass
        monkeypatch.setattr(lock.os, "fstat", lambda _: os.stat_result([0o100600, 0, 0, 1, os.getuid() + 1, *[0] * 5]))
        with lock._machine_lock():
            pass
    finally:
        holder.kill()
        holder.wait()
    path.unlink()
    path.mkdir()
    with lock._machine_lock():
        pass


def test_hard_link_to_events_is_separated(run, tmp_path):
    run.events_file.write_text("")
    os.link(run.events_file, tmp_path / "backup.jsonl")
    from shoestring.training.monitor.events import Events

    with Events(run.events_file) as events:
        events.emit("note", message="new")
    assert (tmp_path / "backup.jsonl").read_text() == "" and "new" in run.events_file.read_text()


def test_leftovers_of_killed_processes_are_removed_and_files_of_the_user_are_not(run, notes):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    leftovers = [
        *(f".{name}.{ended.pid}" for name in ("plan.json", "state.json", "ledger.json", "report.html", "events.jsonl")),
        *(
            f"failed/.update-3.json.{ended.pid}",
            "report.html.part",
            f".shared-{'0f' * 16}",
            ".trainer/tmpabc/trainer_state.json",
        ),
        *("light/.removed-00000002/model.safetensors", "light/update-00000004/.model.safetensors.next"),
        *(f"checkpoints/.writing-00000004-{ended.pid}/state.json", "checkpoints/.removed-00000002/state.json"),
    ]
    user = [
        *(
            ".state.json.old",
            ".report.html.draft",
            ".notes.1",
            "checkpoints/.writing-thesis/a",
            "checkpoints/.removed-x",
        ),
        *("checkpoints/.replaced-mine/a", "light/.removed-me/a", f".report.html.{os.getpid()}"),
        "checkpoints/.writing-00000009-9",
    ]
    for name in (*leftovers, *user):
        (run.path / name).parent.mkdir(parents=True, exist_ok=True)
        (run.path / name).write_text("x")
    (run.checkpoints / ".writing-plans").symlink_to(notes)
    with run.locked():
        Store(run.checkpoints)
        light.remove_leftovers(run.light)
    assert [name for name in leftovers if (run.path / name).exists()] == []
    assert [name for name in user if not (run.path / name).exists()] == []
    assert not (run.light / "update-00000004").exists() and (notes / "notes.txt").exists()
    assert (run.checkpoints / ".writing-plans").is_symlink()


def test_killed_removal_of_weights_leaves_no_damaged_set(tmp_path, monkeypatch):
    for update in (1, 2):
        folder = light.weights_folder(tmp_path, update)
        folder.mkdir()
        (folder / "model.safetensors").write_text("")
    monkeypatch.setattr(
        "shoestring.training.checkpoint.files.remove", lambda _: None
    )  # killed before a file is removed
    light.keep_newest(tmp_path, 1)
    assert [path.name for path in light.list_weights_folders(tmp_path)] == ["update-00000002"]
    monkeypatch.undo()
    light.remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["update-00000002"]
