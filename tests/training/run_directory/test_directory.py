import errno
import multiprocessing
import os

import pytest

from shoestring.base.errors import ShoestringError, UsageError
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.stored import StoredPlan, StoredState
from tests.training.checkpoint.faults import Disk, failing_from


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


@pytest.mark.parametrize(
    ("path", "hint"),
    {
        "file/run": "a part of this path is a file",
        "file": "there is a file",
        "dangling": "a link that leads nowhere",
        "dangling/run": "a link that leads nowhere",
        "n" * 300: "a shorter path",
        "/proc/run": "choose another directory",
    }.items(),
)
def test_unusable_path_is_one_error_with_a_hint(tmp_path, path, hint):
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(UsageError, match=r"cannot be used as a run directory: [A-Z]") as raised:
        RunDirectory(tmp_path / path).create()
    assert hint in raised.value.hint


@pytest.mark.parametrize(
    ("code", "status", "hint"),
    [
        (errno.EROFS, 2, "mount that disk for writing"),
        (errno.EACCES, 2, "allow your user"),
        (errno.ENOSPC, 1, "free disk space"),
        (errno.EDQUOT, 1, "your quota"),
        (errno.EMFILE, 1, "ulimit -n"),
        (errno.EFBIG, 1, "ulimit -f"),
    ],
)
def test_directory_that_cannot_be_written_or_locked_is_one_error(tmp_path, code, status, hint):
    run = RunDirectory(tmp_path / "run")
    with Disk(tmp_path, failing_from(0, code)).watching(), pytest.raises(ShoestringError) as created:
        run.create()
    run.create()
    with Disk(tmp_path, failing_from(0, code)).watching(), pytest.raises(ShoestringError) as locked, run.locked():
        pass
    for error in (created.value, locked.value):
        assert (error.status, hint in error.hint, os.strerror(code) in error.message) == (status, True, True)


def test_full_disk_does_not_prevent_the_lock(tmp_path):
    def fail(number, name, path):
        if name in ("pwrite", "ftruncate"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with Disk(tmp_path, fail).watching(), RunDirectory(tmp_path).locked():
        pass


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
