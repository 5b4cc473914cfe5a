"""Copies are incremental, complete or absent, and those of one run alone."""

import shutil

import pytest

from shoestring.base.errors import UsageError
from shoestring.remote.backup.commits import names_of
from shoestring.remote.backup.folder_store import FolderStore
from shoestring.remote.backup.opened import UnsettledError
from tests.remote.backup.example_runs import OTHER_ID, copier, save


def commits(copies):
    return names_of(FolderStore(copies).sizes("commits"))


def test_only_new_files_are_sent(tmp_path):
    run = save(tmp_path / "run", 1)
    copying = copier(run, tmp_path / "copies")
    first = copying.copy()
    assert first.sent_bytes == first.bytes
    assert copying.copy() is None
    save(run.path, 2)
    second = copying.copy()
    assert 0 < second.sent_bytes < second.bytes  # best/ and plan.json are there
    again = copier(run, tmp_path / "copies").copy()  # of the next session
    assert (again.update, again.sent_bytes) == (2, 0)


def test_copies_of_two_checkpoints_stay(tmp_path):
    run = save(tmp_path / "run", 1)
    copying = copier(run, tmp_path / "copies")
    for update in (1, 2, 3, 3):
        save(run.path, update)
        copying.copy()
    assert [name.update for name in commits(tmp_path / "copies")] == [3, 2]
    assert len(FolderStore(tmp_path / "copies").sizes("objects")) < 20


def test_files_that_are_removed_while_they_are_copied_are_complete(tmp_path):
    run = save(tmp_path / "run", 1)
    copying = copier(run, tmp_path / "copies")
    sizes = []

    def remove_checkpoints(size):
        sizes.append(size)
        if len(sizes) == 2:
            shutil.rmtree(run.checkpoints)

    copying._on_block = remove_checkpoints
    assert copying.copy().update == 1
    assert not run.checkpoints.exists()


def test_damaged_checkpoint_is_not_copied(tmp_path):
    run = save(tmp_path / "run", 1)
    copying = copier(run, tmp_path / "copies")
    copying.copy()
    save(run.path, 2)
    file = run.checkpoints / "update-00000002" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(UnsettledError, match="does not match its manifest"):
        copying.copy()
    assert [name.update for name in commits(tmp_path / "copies")] == [1]


def test_damaged_object_of_an_earlier_session_is_sent_again(tmp_path):
    run = save(tmp_path / "run", 1)
    copier(run, tmp_path / "copies").copy()
    victim = max((tmp_path / "copies" / "objects").iterdir(), key=lambda path: path.stat().st_size)
    intact = victim.read_bytes()
    victim.write_bytes(b"x" * len(intact))
    assert copier(run, tmp_path / "copies").copy().sent_bytes == len(intact)
    assert victim.read_bytes() == intact


def test_another_run_is_refused(tmp_path):
    run = save(tmp_path / "run", 1)
    copier(run, tmp_path / "copies").copy()
    with pytest.raises(UsageError, match="belongs to another run"):
        copier(run, tmp_path / "copies", OTHER_ID).copy()


def test_two_machines_that_copy_one_run_are_noticed(tmp_path):
    run = save(tmp_path / "run", 1)
    first, second = copier(run, tmp_path / "copies"), copier(run, tmp_path / "copies")
    first.copy()
    second.copy()
    save(run.path, 2)
    with pytest.raises(UsageError, match="another machine copies this run"):
        first.copy()


def test_a_link_in_place_of_objects_is_not_followed(tmp_path):
    run = save(tmp_path / "run", 1)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "copies").mkdir()
    (tmp_path / "copies" / "objects").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        copier(run, tmp_path / "copies").copy()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_unfinished_files_of_killed_processes_are_removed(tmp_path):
    run = save(tmp_path / "run", 1)
    objects = tmp_path / "copies" / "objects"
    objects.mkdir(parents=True)
    (objects / f".{'0' * 64}.999999999").write_bytes(b"half")
    (objects / ".notes.2024").write_bytes(b"of the user")
    copier(run, tmp_path / "copies").copy()
    assert [path.name for path in objects.iterdir() if path.name.startswith(".")] == [".notes.2024"]


def test_half_a_commit_of_another_machine_does_not_count_as_a_copy(tmp_path):
    run = save(tmp_path / "run", 1)
    copier(run, tmp_path / "copies").copy()
    half = tmp_path / "copies" / "commits" / "00000002-update-00000002-abcdef12.json"
    half.write_bytes(b"{")
    save(run.path, 3)
    copier(run, tmp_path / "copies").copy()
    assert [name.update for name in commits(tmp_path / "copies")] == [3, 1] and not half.exists()
