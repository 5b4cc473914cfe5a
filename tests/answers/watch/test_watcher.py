import json
import shutil
import subprocess
import sys

import pytest

from shoestring.answers.watch.watcher import Watcher
from shoestring.base.errors import UsageError
from shoestring.training.run_directory.lock import locked
from tests.answers import runs


def test_view_of_a_finished_run(tmp_path):
    view = Watcher(runs.finished(tmp_path)).view()
    assert (view.recipe, view.status, view.update, view.total_updates) == ("temporal", "finished", 3000, 3000)
    assert (view.session, view.killed_sessions, view.epoch) == (4, 1, 10)
    assert view.best_update == 2400 and view.metrics["test"]["macro_f1"] == pytest.approx(0.68, abs=0.02)
    assert view.planned_memory["capacity_bytes"] == runs.T4
    assert view.seconds_left == 0.0
    json.dumps(view.json(), allow_nan=False)


def test_running_run_predicts_what_is_left(tmp_path):
    run = runs.failed(tmp_path)
    state = {"status": "running", "update": 0, "total_updates": 3000, "next": "shoestring train"}
    (run / "state.json").write_text(json.dumps(state))
    view = Watcher(run, clock=lambda: runs.BEGIN + 200).view()
    assert (view.status, view.update) == ("running", 200)
    assert view.seconds_left == pytest.approx(2800 * 0.505, rel=0.1)  # an update takes 0.48 to 0.53 s


def test_plan_predicts_before_the_first_update(tmp_path):
    view = Watcher(runs.just_started(tmp_path), clock=lambda: runs.BEGIN + 1).view()
    assert (view.status, view.seconds_left) == ("running", 3000 * 0.46)


def test_session_killed_without_notice(tmp_path):
    """Its lock names a process of this machine that has ended; a copy has the same lock."""
    run = runs.just_started(tmp_path / "run")
    script = (
        "from shoestring.training.run_directory.lock import locked; import os, pathlib\n"
        f"with locked(pathlib.Path({str(run)!r})):"
    )
    with locked(run):
        watcher = Watcher(run)
        assert watcher.view().status == "running"
    subprocess.run([sys.executable, "-c", f"{script} os._exit(0)"], check=True)
    assert watcher.view().status == "killed"
    assert Watcher(shutil.copytree(run, tmp_path / "copy")).view().status == "killed"


def test_copy_of_a_run_on_another_machine(tmp_path):
    run = runs.just_started(tmp_path)
    (run / "lock").write_text("pid 1 on elsewhere, begun 1\n")
    seconds = [10]
    watcher = Watcher(run, clock=lambda: runs.BEGIN + seconds[0])
    assert watcher.view().status == "running"
    facts = watcher.view().json()
    seconds[0] = 60
    assert watcher.view().json() == facts
    seconds[0] = 200
    assert watcher.view().status == "silent"


def test_run_that_is_being_planned(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    with locked(run):
        watcher = Watcher(run)
        assert watcher.view().status == "starting"
        runs.just_started(run)
        assert watcher.view().status == "running"
        shutil.rmtree(run)
    with pytest.raises(UsageError, match="there is no directory"):
        watcher.view()


def test_directory_without_a_run(tmp_path):
    for path, message in ((tmp_path, "is not a run directory"), (tmp_path / "absent", "there is no directory")):
        with pytest.raises(UsageError, match=message):
            Watcher(path)


def test_files_that_change_are_read_again(tmp_path):
    run = runs.just_started(tmp_path)
    watcher = Watcher(run)
    replacement = tmp_path / "replacement"
    replacement.write_text(json.dumps({"status": "paused", "update": 7, "total_updates": 9, "reason": "12 h"}))
    replacement.replace(run / "state.json")
    view = watcher.view()
    assert (view.status, view.update, view.reason) == ("paused", 7, "12 h")
    (run / "state.json").write_text("{")
    assert any("state.json cannot be read" in problem for problem in watcher.view().problems)


def test_directory_is_only_read(tmp_path):
    run = runs.finished(tmp_path)

    def state():
        contents = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        return contents, {path: path.stat().st_mtime_ns for path in (run, *run.rglob("*"))}

    before = state()
    Watcher(run).view()
    assert state() == before
