"""`remove_own` removes what has a name of a run, and nothing else."""

import os
import re

import pytest

from shoestring.training.checkpoint.files import remove_own, remove_own_renamed
from shoestring.training.checkpoint.names import SAVED, removed_path
from shoestring.training.run_directory.contents import OWN


@pytest.mark.parametrize("name", [".env", "notes.txt", "data", "plan.json.bak", "update-1", "model.safetensors"])
def test_other_names_are_refused(tmp_path, name):
    (tmp_path / name).mkdir()
    for names in (OWN, SAVED):
        for act in (remove_own, lambda path, names: remove_own_renamed(path, path.with_name("x"), names)):
            with pytest.raises(ValueError, match="has no name of ours"):
                act(tmp_path / name, names)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_link_is_removed_and_not_its_target(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    (tmp_path / "update-00000003").symlink_to(tmp_path / "mine")
    remove_own(tmp_path / "update-00000003", SAVED)
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "notes.txt"]


def test_folder_with_another_disk_in_it_stays(tmp_path, monkeypatch):
    folder = tmp_path / "update-00000003"
    (folder / "mounted").mkdir(parents=True)
    (folder / "mounted" / "notes.txt").touch()
    lstat = os.lstat

    def on_another_disk(path, **options):
        status = lstat(path, **options)
        values = list(status)
        values[2] += str(path).endswith("mounted")  # st_dev
        return os.stat_result(values)

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", on_another_disk)
        remove_own(folder, SAVED)
    assert (folder / "mounted" / "notes.txt").exists()
    remove_own_renamed(folder, removed_path(folder), SAVED)
    assert not list(tmp_path.iterdir())


def test_names_are_those_of_the_table():
    assert all(OWN.fullmatch(name) for name in ("plan.json", ".plan.json.17", "checkpoints", ".trainer", ".restoring"))
    assert isinstance(SAVED, re.Pattern) and SAVED.fullmatch(".writing-00000001-5")
