"""A file of another run in a run's directory is an error of every command that would read it."""

import errno
import json
import shutil
from pathlib import Path

import pytest
import torch

import shoestring
from shoestring.answers.compare.compared import read_runs
from shoestring.base.errors import UsageError
from shoestring.remote.backup.restoring import restore
from shoestring.remote.backup.urls import parse_url
from shoestring.runs.calibrate import load_calibration
from shoestring.training.checkpoint import folder
from shoestring.training.checkpoint.files import write_json
from shoestring.training.checkpoint.identity import is_id, new_id
from shoestring.training.checkpoint.light import save_light
from shoestring.training.checkpoint.store import Store
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.one_run import name_run, require_one_run
from shoestring.training.run_directory.stored import StoredPlan, StoredState

OWN_ID, OTHER_ID = "a" * 32, "b" * 32
PLAN = {"recipe": "temporal", "reference": "temporal", "digest": "", "plan": {"settings": {}}}
FILES = {
    "checkpoints/update-00000009": "checkpoints/update-00000009",
    **{name: name for name in ("best", "preprocessing", "state.json", "events.jsonl", "backup.json")},
    "light/manifest.json": "light",
    "light/update-00000008": "light/update-00000008",
}
"""What is copied from one directory to the other, and what the error names."""


def make(path: Path, run_id: str | None, seed: int) -> RunDirectory:
    """Make a run with all files that are read back; without an id, as an earlier version wrote them."""
    run = RunDirectory(path)
    run.create()
    StoredPlan(**PLAN, options={"seed": seed, "epochs": 3}, run=run_id).write(run.plan_file)
    identity = run.identity()
    store = Store(run.checkpoints, run=identity, keep=9)
    for update in (8, 9):
        store.save(update, {"model": {"weight": torch.zeros(2)}})
    for weights in (run.best, run.light, run.light / "update-00000008"):
        save_light(weights, torch.nn.Linear(1, 1), {"update": 8}, run=identity)
    folder.write_folder(run.preprocessing, lambda written: (written / "a.json").write_text("{}"), identity)
    StoredState(status="paused", update=9, run=run_id or "").write(run.state_file)
    event = {"event": "session", "session": 1, "time": 1.0, "update": 0, **({"run": run_id} if run_id else {})}
    run.events_file.write_text(json.dumps(event) + "\n")
    write_json(run.backup_file, {"run": run_id or OTHER_ID, "url": "/copies"})
    return run


def take(run: RunDirectory, other: RunDirectory, name: str) -> None:
    """Replace an entry of a run by that of another one."""
    source, target = other.path / name, run.path / name
    if source.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a run, another one, and one of an earlier version."""
    folder = tmp_path_factory.mktemp("runs")
    for name, run_id, seed in (("run", OWN_ID, 0), ("other", OTHER_ID, 1), ("earlier", None, 0)):
        make(folder / name, run_id, seed)
    return folder


@pytest.fixture
def run(runs, tmp_path):
    return RunDirectory(shutil.copytree(runs / "run", tmp_path / "run"))


@pytest.fixture
def other(runs):
    return RunDirectory(runs / "other")


@pytest.fixture
def earlier(runs, tmp_path):
    return RunDirectory(shutil.copytree(runs / "earlier", tmp_path / "earlier"))


def test_own_files_are_of_one_run(run, tmp_path):
    require_one_run(run.path)
    shutil.copytree(run.path, tmp_path / "copy")
    require_one_run(tmp_path / "copy")
    require_one_run(tmp_path / "nothing")


@pytest.mark.parametrize("name", FILES)
def test_file_of_another_run_is_named_with_both_ids(run, other, name):
    take(run, other, name)
    with pytest.raises(UsageError) as error:
        require_one_run(run.path)
    expected = (
        f"{run.path / FILES[name]} is of another run than {run.plan_file}: it is of run bbbbbbbb, and the plan is"
    )
    assert error.value.message == f"{expected} of run aaaaaaaa"
    assert error.value.hint == (
        f"move it out of {run.path}; then continue run aaaaaaaa with: shoestring train temporal --run {run.path}"
    )
    has_options = name not in ("state.json", "events.jsonl", "backup.json")  # which have the id alone
    assert error.value.problems == (("seed: 1 there, and 0 here",) if has_options else ())


def test_plan_of_another_run_is_named(run, other):
    take(run, other, "plan.json")
    with pytest.raises(UsageError, match=r"plan\.json is of another run than the rest of the directory") as error:
        require_one_run(run.path)
    assert "the plan of run bbbbbbbb" in error.value.message and "are of run aaaaaaaa" in error.value.message
    assert "put the plan.json of run aaaaaaaa back" in error.value.hint


def test_all_files_of_another_run_are_named(run, other):
    for name in ("best", "light"):
        take(run, other, name)
    with pytest.raises(UsageError) as error:
        require_one_run(run.path)
    assert error.value.message.startswith(f"{run.light} is of another run")
    assert error.value.problems[1:] == ("of another run as well: light/update-00000008, best",)
    assert error.value.hint.startswith("move them out of ")


def test_file_that_names_no_run_is_not_of_a_run_with_an_id(run, earlier):
    take(run, earlier, "best")
    with pytest.raises(UsageError, match=r"best is of another run than .*: it is of a run without an id"):
        require_one_run(run.path)
    shutil.rmtree(run.best)
    take(earlier, run, "checkpoints/update-00000009")
    with pytest.raises(UsageError, match="and the plan is of a run without an id"):
        require_one_run(earlier.path)


def test_folder_of_the_user_may_have_files_of_another_run(run, other):
    shutil.copytree(other.checkpoints / "update-00000009", run.checkpoints / "update-00000009.other")
    shutil.copytree(other.best, run.light / "of the other run")
    require_one_run(run.path)


def test_weights_of_the_user_and_damaged_files_name_no_run(run):
    (run.best / "manifest.json").unlink()
    (run.light / "manifest.json").write_text("{")
    run.events_file.write_text("[")
    run.backup_file.write_text("[]")
    for content in ("", "1", "[]", '{"run": 1, "update": "x"}'):
        run.state_file.write_text(content)
        if content[:1] != "{":
            require_one_run(run.path)
    run.state_file.unlink()
    (run.preprocessing / "manifest.json").unlink()
    require_one_run(run.path)


@pytest.mark.parametrize("run_id", ["abc", OWN_ID[1:], f"{OWN_ID}a", OWN_ID.upper()])
def test_id_of_another_form_is_not_that_of_the_run(run, run_id):
    run.state_file.write_text(json.dumps({"run": run_id, "update": 9}))
    with pytest.raises(UsageError, match=r"state\.json is of another run than .*: it is of a run without an id"):
        require_one_run(run.path)


def test_state_before_the_first_update_and_a_damaged_plan_name_no_run(run, other):
    run.state_file.write_text('{"status": "running", "update": 0}')
    require_one_run(run.path)
    take(run, other, "best")
    run.plan_file.write_text("{}")
    require_one_run(run.path)


def test_full_disk_leaves_a_run_without_an_id(earlier, monkeypatch, capsys):
    content = earlier.plan_file.read_bytes()

    def write(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(StoredPlan, "write", write)
    name_run(earlier.path)
    assert (earlier.plan_file.read_bytes(), capsys.readouterr().err) == (content, "")


def test_runs_get_different_ids():
    ids = {new_id() for _ in range(9)}
    assert len(ids) == 9 and all(map(is_id, ids))


def test_run_of_an_earlier_version_gets_an_id_once(earlier, capsys):
    require_one_run(earlier.path)
    for _ in range(2):
        name_run(earlier.path)
    (note,) = capsys.readouterr().err.splitlines()
    assert "it is run bbbbbbbb from now on" in note and "up to update 9" in note  # the id of its copies
    plan = earlier.plan()
    assert (plan.run, plan.named_at, plan.is_changed) == (OTHER_ID, 9, False)
    require_one_run(earlier.path)
    Store(earlier.checkpoints, run=earlier.identity(), keep=9).save(10, {})
    require_one_run(earlier.path)
    Store(earlier.checkpoints, keep=9).save(11, {})  # of an earlier version, and later than the run got its id
    with pytest.raises(UsageError, match="update-00000011 is of another run"):
        require_one_run(earlier.path)


def test_plan_that_was_changed_by_hand_stays(earlier):
    content = earlier.plan_file.read_text().replace('"epochs": 3', '"epochs": 4')
    earlier.plan_file.write_text(content)
    name_run(earlier.path)
    assert earlier.plan_file.read_text() == content


VERBS = {
    "train": lambda run, _: shoestring.train("temporal", run=run.path, on="cpu"),
    "evaluate": lambda run, _: shoestring.evaluate(run.path),
    "evaluate a checkpoint": lambda run, _: shoestring.evaluate(run.checkpoints / "update-00000008"),
    "predict": lambda run, folder: shoestring.predict(run.path, data=folder, out=folder / "rows.jsonl"),
    "export": lambda run, folder: shoestring.export(run.path, to="safetensors", out=folder / "export"),
    "report": lambda run, _: shoestring.report(run.path),
    "compare": lambda run, _: read_runs([run.path]),
    "replay": lambda run, _: shoestring.replay(run.path, update=3),
    "calibrate": lambda run, _: load_calibration(run.path),
    "restore": lambda run, folder: restore(run.path, parse_url(str(folder), "--from"), is_backup=True),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_refuses_a_file_of_another_run(run, other, verb, tmp_path):
    take(run, other, "checkpoints/update-00000009")
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match="update-00000009 is of another run than"):
        VERBS[verb](run, tmp_path)
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before
