import multiprocessing

import pytest

from shoestring.errors import UsageError
from shoestring.session.directory import RunDirectory
from shoestring.session.stored import StoredPlan, StoredState


def test_a_new_run_has_neither_plan_nor_state(tmp_path):
    run = RunDirectory(tmp_path / "runs" / "a")
    run.create()
    assert run.plan() is None
    assert run.state() is None


def test_what_is_written_is_read_and_nothing_lies_beside(tmp_path):
    run = RunDirectory(tmp_path)
    plan = StoredPlan(recipe="temporal", options={"epochs": 2})
    state = StoredState(status="paused", update=3, metrics={"validation": {"loss": 0.5}})
    plan.write(run.plan_file)
    state.write(run.state_file)
    assert (run.plan(), run.state()) == (plan, state)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json", "state.json"]


def test_a_directory_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UsageError, match=r"holds no run: thesis\.tex"):
        RunDirectory(tmp_path).create()


def test_what_a_kill_left_of_a_write_is_not_something_else(tmp_path):
    (tmp_path / ".plan.json.123").write_text("{")
    (tmp_path / "lock").write_text("")
    RunDirectory(tmp_path).create()


def test_a_file_in_the_way_is_one_error(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(UsageError, match="cannot hold a run"):
        RunDirectory(tmp_path / "run").create()


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff"])
def test_a_damaged_file_is_one_error(tmp_path, text):
    (tmp_path / "state.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=r"state\.json"):
        RunDirectory(tmp_path).state()


def hold(path, held, leave):
    with RunDirectory(path).locked():
        held.set()
        leave.wait(30)


def test_a_second_process_is_refused_and_a_dead_ones_lock_is_free(tmp_path):
    context = multiprocessing.get_context("spawn")
    held, leave = context.Event(), context.Event()
    holder = context.Process(target=hold, args=(tmp_path, held, leave))
    holder.start()
    assert held.wait(30)
    with pytest.raises(UsageError, match=f"another process .pid {holder.pid}"), RunDirectory(tmp_path).locked():
        pass
    holder.kill()
    holder.join()
    with RunDirectory(tmp_path).locked():
        pass
