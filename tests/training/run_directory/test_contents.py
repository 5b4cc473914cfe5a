"""Each file and folder of a run's directory is treated as its row in the table says."""

from operator import attrgetter

import pytest

from shoestring.base.errors import UsageError
from shoestring.training.checkpoint.reserved import reserve_of
from shoestring.training.run_directory.contents import BY_NAME, ENTRIES, PLAN, RESTORING, TRAINER
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.location import find_run

entries = pytest.mark.parametrize("entry", ENTRIES, ids=attrgetter("name"))


def create(folder, entry):
    path = folder / entry.name
    path.mkdir() if entry.is_folder else path.touch()


@entries
def test_link_is_refused(entry, tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.create()
    (run.path / entry.name).symlink_to(tmp_path)
    with pytest.raises(UsageError, match="is a symbolic link to"):
        run.refuse_links()


@entries
def test_entry_marks_a_run(entry, tmp_path):
    create(tmp_path, entry)
    assert find_run(tmp_path / "run.toml") == (tmp_path.resolve() if entry.marks_run else None)


@entries
def test_entry_without_a_plan(entry, tmp_path):
    """A directory with the entry alone can become that of a new run."""
    create(tmp_path, entry)
    if entry == PLAN or "train" in entry.before_plan or entry.name.startswith("."):
        RunDirectory(tmp_path).create()
    else:
        with pytest.raises(UsageError, match="is not empty and contains no run"):
            RunDirectory(tmp_path).create()


@entries
def test_only_what_a_killed_process_was_writing_is_removed(entry, tmp_path):
    create(tmp_path, entry)
    unfinished = tmp_path / f".{entry.name}.{2**22 + 1}"  # more than the largest id of a process
    unfinished.touch()
    with RunDirectory(tmp_path).locked():
        assert unfinished.exists() == (entry.is_folder or not entry.is_replaced)
    assert (tmp_path / entry.name).exists() == (entry not in (TRAINER, RESTORING))


def test_every_path_of_a_run_is_in_the_table(tmp_path):
    run = RunDirectory(tmp_path)
    paths = [getattr(run, name) for name, item in vars(RunDirectory).items() if isinstance(item, property)]
    paths += [run.illustrations("test", 3), run.failed_update(3), reserve_of(run.state_file)]
    assert {path.relative_to(tmp_path).parts[0] for path in paths} <= BY_NAME.keys()
    assert len(BY_NAME) == len(ENTRIES)
