import multiprocessing

import pytest

from shoestring.errors import UsageError
from shoestring.session.directory import RunDirectory
from shoestring.session.stored import StoredPlan, StoredState


def test_new_run_has_neither_plan_nor_state(tmp_path):
    run = RunDirectory(tmp_path / "runs" / "a")
    run.create()
    assert run.plan() is None
    assert run.state() is None


def test_plan_and_state_round_trip_without_other_files(tmp_path):
    run = RunDirectory(tmp_path)
    plan = StoredPlan(recipe="temporal", options={"epochs": 2})
    state = StoredState(status="paused", update=3, metrics={"validation": {"loss": 0.5}})
    plan.write(run.plan_file)
    state.write(run.state_file)
    assert (run.plan(), run.state()) == (plan, state)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json", "state.json"]


def test_directory_with_other_files_is_rejected(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UsageError, match=r"contains no run: thesis\.tex"):
        RunDirectory(tmp_path).create()


def test_temporary_files_of_a_killed_write_are_ignored(tmp_path):
    (tmp_path / ".plan.json.123").write_text("{")
    (tmp_path / "lock").write_text("")
    RunDirectory(tmp_path).create()


def test_file_instead_of_directory_is_rejected(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(UsageError, match="cannot be used as a run directory"):
        RunDirectory(tmp_path / "run").create()


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff"])
def test_damaged_state_file_is_rejected(tmp_path, text):
    (tmp_path / "state.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=r"state\.json"):
        RunDirectory(tmp_path).state()


def hold_lock(path, locked, release):
    with RunDirectory(path).locked():
        locked.set()
        release.wait(30)


def test_lock_excludes_second_process_until_holder_dies(tmp_path):
    context = multiprocessing.get_context("spawn")
    locked, release = context.Event(), context.Event()
    holder = context.Process(target=hold_lock, args=(tmp_path, locked, release))
    holder.start()
    assert locked.wait(30)
    with pytest.raises(UsageError, match=f"another process .pid {holder.pid}"), RunDirectory(tmp_path).locked():
        pass
    holder.kill()
    holder.join()
    with RunDirectory(tmp_path).locked():
        pass
