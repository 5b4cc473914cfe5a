"""Temporary folders: those of ended processes of this machine are removed, all others stay."""

import os
import subprocess
import sys

import pytest

from shoestring.remote import temporary


@pytest.fixture
def parent(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_only_folders_of_ended_processes_of_this_machine_are_removed(parent):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    first = temporary.temporary_folder("backup")
    others = [
        "shoestring-backup-1",
        f"shoestring-backup-elsewhere-{ended.pid}-abc",
        f"shoestring-kaggle-x-{ended.pid}-a",
    ]
    abandoned = f"shoestring-backup-{temporary._node()}-{ended.pid}-abc_d"
    for name in (*others, abandoned):
        (parent / name).mkdir()
    second = temporary.temporary_folder("backup")
    assert {path.name for path in parent.iterdir()} == {first.name, second.name, *others}
    assert f"-{os.getpid()}-" in second.name
