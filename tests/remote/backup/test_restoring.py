"""Only a complete copy that verifies is restored, and only where there is no run."""

import json
import re
from pathlib import Path

import pytest

from shoestring.base.errors import RunError, UsageError
from shoestring.remote.backup.commits import CommitName, parse_commit
from shoestring.remote.backup.identity import write_identity
from shoestring.remote.backup.restoring import restore
from shoestring.remote.backup.urls import parse_url
from shoestring.training.checkpoint.files import with_digest
from shoestring.training.run_directory.directory import RunDirectory
from tests.remote.backup.example_runs import OTHER_ID, RUN_ID, content, copier, save


@pytest.fixture
def copies(tmp_path):
    """A folder with the copies of updates 1 and 2 of the run beside it."""
    run = save(tmp_path / "run", 1)
    copying = copier(run, tmp_path / "copies")
    copying.copy()
    save(run.path, 2)
    copying.copy()
    return tmp_path / "copies"


def commit_files(copies):
    """Return the files of the commits, the newest first."""
    return sorted((copies / "commits").iterdir(), reverse=True)


def restored(copies, name="new"):
    path = copies.with_name(name)
    return restore(path, parse_url(str(copies), "--from")), path


def test_the_newest_copy_is_restored(copies):
    message, path = restored(copies)
    assert message.startswith("restored update 2 ")
    original = content(copies.with_name("run"))
    restored_files = content(path)
    assert restored_files.pop("backup.json") and "lock" in restored_files
    restored_files.pop("lock")
    assert restored_files == {name: text for name, text in original.items() if "update-00000001" not in name}
    assert not [entry for entry in path.parent.iterdir() if entry.name.startswith(".")]


@pytest.mark.parametrize("damage", ["missing", "changed", "shorter", "longer", "commit", "empty commit"])
def test_a_damaged_copy_is_named_and_the_one_before_is_taken(copies, damage, capsys):
    commit = commit_files(copies)[0]
    digest = json.loads(commit.read_text())["files"]["checkpoints/update-00000002/model.safetensors"]["sha256"]
    victim = copies / "objects" / digest
    data = victim.read_bytes()
    if damage == "missing":
        victim.unlink()
    elif damage == "commit":
        commit.write_text(commit.read_text().replace("plan.json", "plam.json"))
    elif damage == "empty commit":
        commit.write_bytes(b"")
    else:
        victim.write_bytes({"changed": b"x" + data[1:], "shorter": data[:-1], "longer": data + b"x"}[damage])
    message, path = restored(copies)
    assert message.startswith("restored update 1 ")
    assert (path / "checkpoints" / "update-00000001").is_dir()
    notes = capsys.readouterr().err
    assert f"damaged in {copies}: {commit.name}: " in notes and "the copy before it is taken" in notes


def test_no_intact_copy_is_an_error_that_names_all_problems(copies):
    for file in (copies / "objects").iterdir():
        file.write_bytes(b"")
    with pytest.raises(RunError, match=r"no copy in .* can be restored") as error:
        restored(copies)
    assert len(error.value.problems) == 2
    assert not copies.with_name("new").exists()
    assert not [entry for entry in copies.parent.iterdir() if entry.name.startswith(".")]


def test_no_copy_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="no complete copy"):
        restore(tmp_path / "new", parse_url(str(tmp_path / "nothing"), "--from"))


def test_an_empty_place_of_the_backup_begins_the_run(tmp_path):
    empty, unmounted = tmp_path / "copies", tmp_path / "drive" / "copies"
    assert restore(tmp_path / "new", parse_url(str(empty), "--from"), is_backup=True).endswith("the run begins")
    assert not (tmp_path / "new").exists() and empty.is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file is a file"):
        restore(tmp_path / "new", parse_url(str(tmp_path / "file"), "--from"))
    with pytest.raises(UsageError, match="the folder cannot be created"):
        restore(tmp_path / "new", parse_url("/proc/copies", "--from"), is_backup=True)
    with pytest.raises(UsageError, match=f"the folder {unmounted.parent} does not exist"):
        restore(tmp_path / "new", parse_url(str(unmounted), "--from"), is_backup=True)


HOSTILE = {
    "above the directory": {"../outside": 4},
    "absolute": {"/tmp/outside": 4},
    "hidden": {"light/.hidden": 4},
    "link like": {"light/../../outside": 4},
    "backslash": {"light/a\\b": 4},
    "not of a run": {"recipe.py": 4},
    "of a lock": {"lock": 4},
    "file and folder": {"light/a": 4, "light/a/b": 4},
    "negative": {"light/a": -1},
    "too large": {"light/a": 2**60},
    "no number": {"light/a": "4"},
    "deep": {"light/" + "a/" * 20 + "b": 4},
}


@pytest.mark.parametrize("files", HOSTILE.values(), ids=HOSTILE)
def test_hostile_commits_are_refused(copies, files):
    value = json.loads(commit_files(copies)[0].read_text())
    del value["sha256"]
    value["files"] |= {path: {"bytes": size, "sha256": "0" * 64} for path, size in files.items()}
    text = json.dumps(with_digest(value)).encode()
    with pytest.raises(ValueError):
        parse_commit(text, CommitName(2, 2, "0" * 8))


def test_a_directory_with_other_files_is_left_alone(copies):
    path = copies.with_name("new")
    path.mkdir()
    (path / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match=re.escape("is not empty and contains no run: thesis.txt")):
        restored(copies)
    assert content(path) == {"thesis.txt": b"mine"}


def test_a_directory_without_a_plan_is_replaced(copies):
    path = copies.with_name("new")
    path.mkdir()
    (path / "lock").touch()
    (path / "planning.jsonl").write_text("")
    assert restored(copies)[0].startswith("restored update 2 ")


def test_a_run_that_is_as_far_is_used(copies):
    run = copies.with_name("run")
    write_identity(run / "backup.json", RUN_ID, str(copies))
    before = content(run)
    assert "at least as far" in restored(copies, "run")[0]
    assert content(run) == before


@pytest.mark.parametrize(("run_id", "message"), [(RUN_ID, "overwrites no run"), (OTHER_ID, "has another run")])
def test_no_run_is_overwritten(copies, run_id, message):
    run = save(copies.with_name("other"), 1)
    write_identity(run.backup_file, run_id, str(copies))
    before = content(run.path)
    with pytest.raises(UsageError, match=message):
        restored(copies, "other")
    assert content(run.path) == before


def test_hidden_files_of_the_user_stay(copies):
    path = copies.with_name("new")
    for name in (".git/HEAD", ".ssh/id_ed25519", ".env", ".mine/plan.json"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("mine")
    (path / ".link").symlink_to(copies)
    before = content(path)
    assert restored(copies)[0].startswith("restored update 2 ")
    assert before.items() <= content(path).items() and (path / ".link").is_symlink()


@pytest.mark.parametrize("name", ["state.json", "planning.jsonl"])
def test_a_file_of_the_user_under_a_name_of_a_run_stays(copies, name):
    path = copies.with_name("new")
    path.mkdir()
    (path / name).write_text('{"capital": "Paris"}')
    with pytest.raises(UsageError, match=f"is not empty and contains no run: {name}"):
        restored(copies)
    with pytest.raises(UsageError, match=f"is not empty and contains no run: {name}"):
        RunDirectory(path).create()
    assert content(path) == {name: b'{"capital": "Paris"}'}


def test_the_working_directory_is_restored_in_place(copies, monkeypatch):
    path = copies.with_name("new")
    path.mkdir()
    monkeypatch.chdir(path)
    number = path.stat().st_ino
    restore(Path(), parse_url(str(copies), "--from"))
    assert (path / "plan.json").exists() and path.stat().st_ino == number


@pytest.mark.parametrize("moved", [0, 1, 3, 5])
def test_a_killed_restoring_is_completed(copies, moved, monkeypatch):
    """Killed before or while the files are moved to their places, of which there are six."""
    path = copies.with_name("new")
    replace, count = Path.replace, 0

    def killed(source, target):
        nonlocal count
        if Path(target).parent == path:
            count += 1
            if count > moved:
                raise KeyboardInterrupt
        return replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            restored(copies)
    assert not (path / "plan.json").exists()
    if moved:
        with pytest.raises(UsageError, match="is not empty and contains no run") as error:
            RunDirectory(path).create()
        assert "with --from" in error.value.hint
    assert "at least as far as its copy" in restored(copies)[0]
    complete = restored(copies, "complete")[1]
    assert content(path) == content(complete)
    assert {entry.name for entry in path.iterdir()} == {entry.name for entry in complete.iterdir()}


def test_what_was_not_complete_is_restored_anew(copies):
    path = copies.with_name("new")
    (path / ".restoring" / "run").mkdir(parents=True)
    (path / ".restoring" / "run" / "plan.json").write_text("{}")
    assert restored(copies)[0].startswith("restored update 2 ")
    assert not (path / ".restoring").exists()
