"""What leaves the machine with a run: the table of its directory decides, row by row."""

from contextlib import ExitStack
from operator import attrgetter

import pytest

from shoestring.remote.backup.commits import Commit, CommitName, parse_commit
from shoestring.remote.backup.opened import open_run
from shoestring.remote.kaggle import fetching
from shoestring.remote.kaggle.kernel import leaving
from shoestring.remote.kaggle.kernel.program import previous
from shoestring.training.checkpoint.manifest import FileEntry
from shoestring.training.checkpoint.store import Store
from shoestring.training.run_directory.contents import ENTRIES
from shoestring.training.run_directory.directory import RunDirectory

PLAN, CHECKPOINT = "plan.json", "checkpoints/update-00000003"
entries = pytest.mark.parametrize("entry", ENTRIES, ids=attrgetter("name"))


def path_of(entry):
    """The path of a file in the run's directory that the entry contains, or is."""
    if entry.backup == "newest":
        return f"{CHECKPOINT}/manifest.json"
    return f"{entry.name}/a.json" if entry.is_folder else entry.name


@pytest.fixture
def run(tmp_path):
    """A run that has everything that the table lists."""
    Store(tmp_path / "checkpoints").save(3, {})
    for entry in ENTRIES:
        path = tmp_path / path_of(entry)
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_text('{"status": "paused"}\n')
    return tmp_path


def test_backup_opens_what_is_to_be_copied(run):
    with ExitStack() as stack:
        opened = {file.path.partition("/")[0] for file in open_run(RunDirectory(run), stack).files}
    assert opened == {entry.name for entry in ENTRIES if entry.backup != "no"}


@entries
def test_commit_lists_only_what_is_copied(entry):
    name, content = CommitName(1, 3, "0" * 8), FileEntry(bytes=1, sha256="0" * 64)
    paths = {PLAN, f"{CHECKPOINT}/manifest.json", path_of(entry)}
    commit = Commit(run="0" * 32, update=3, files=dict.fromkeys(paths, content))
    if entry.backup == "no":
        with pytest.raises(ValueError, match="is not the path of a file of a run"):
            parse_commit(commit.text().encode(), name)
    else:
        assert parse_commit(commit.text().encode(), name) == commit


@pytest.mark.parametrize("output_bytes", [10**9, 1])
def test_session_on_kaggle_leaves_what_is_handed_over(run, output_bytes):
    leaving.prune(run, output_bytes)
    drops = output_bytes == 1
    left = {entry.name for entry in ENTRIES if entry.on_kaggle != "removed" and not (drops and entry.is_expendable)}
    assert {path.name for path in run.iterdir()} == left


def test_next_session_copies_what_it_continues(run):
    copied = {path.relative_to(run).parts[0] for path in previous.run_files(run)}
    assert copied == {entry.name for entry in ENTRIES if entry.on_kaggle == "continued"}


def test_damaged_files_end_the_hand_over_or_are_left_out(run):
    for entry in ENTRIES:
        answer = leaving.check(run, [f"{path_of(entry)}: it is cut"])
        assert (entry.name in answer["reason"]) == (entry.if_damaged == "cannot continue")
    assert not any((run / entry.name).exists() for entry in ENTRIES if entry.if_damaged == "is written again")


@entries
def test_fetching_takes_what_was_left(entry, tmp_path):
    assert fetching._is_of_run(f"run/{path_of(entry)}") == (entry.on_kaggle != "removed")
