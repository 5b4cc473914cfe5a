import json
import os
from itertools import count

import pytest

from shoestring.base.errors import DataError, UsageError
from shoestring.training.checkpoint import files
from shoestring.training.data import staging
from shoestring.training.data.staging import stage

BUDGET = 10**6


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "slow" / "data"
    (folder / "deep").mkdir(parents=True)
    for name, size in (("one.bin", 1000), ("deep/two.bin", 5000), ("empty", 0)):
        (folder / name).write_bytes(bytes(range(250)) * (size // 250))
    return folder


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_folder_is_staged_with_progress(source, tmp_path):
    reports = []
    copy = stage(source, tmp_path / "local", budget_bytes=BUDGET, progress=lambda *report: reports.append(report))
    assert copy == tmp_path / "local" / "data"
    assert contents(copy) == contents(source)
    assert reports[-1] == (6000, 6000)
    assert [staged for staged, _ in reports] == sorted(staged for staged, _ in reports)


def test_single_file_is_staged(source, tmp_path):
    copy = stage(str(source / "one.bin"), str(tmp_path / "local"), budget_bytes=1000)
    assert copy.read_bytes() == (source / "one.bin").read_bytes()


def test_only_changed_files_are_copied_again(source, tmp_path, monkeypatch):
    copied = []
    copy_file = staging._copy
    monkeypatch.setattr(staging, "_copy", lambda *args: copied.append(args[0].name) or copy_file(*args))
    stage(source, tmp_path / "local", budget_bytes=BUDGET)
    assert sorted(copied) == ["empty", "one.bin", "two.bin"]
    copied.clear()
    stage(source, tmp_path / "local", budget_bytes=BUDGET)
    assert copied == []
    (source / "one.bin").write_bytes(b"!" * 1000)
    os.utime(source / "one.bin", (1, 1))
    (tmp_path / "local" / "data" / "deep" / "two.bin").write_bytes(b"?" * 5000)
    (source / "empty").unlink()
    copy = stage(source, tmp_path / "local", budget_bytes=BUDGET)
    assert copied == ["two.bin", "one.bin"] and contents(copy) == contents(source)


def test_interrupted_copy_is_continued(source, tmp_path, monkeypatch):
    copy_file, calls = staging._copy, count()

    def interrupt_third_copy(*args):
        if next(calls) == 2:
            raise KeyboardInterrupt
        return copy_file(*args)

    monkeypatch.setattr(staging, "_copy", interrupt_third_copy)
    with pytest.raises(KeyboardInterrupt):
        stage(source, tmp_path / "local", budget_bytes=BUDGET)
    reports = []
    stage(source, tmp_path / "local", budget_bytes=BUDGET, progress=lambda *report: reports.append(report))
    assert next(calls) == 4 and reports[0] == (5000, 6000)


def test_draft_does_not_replace_a_file(source, tmp_path):
    (source / "one.bin.part").write_bytes(b"no draft")
    stage(source, tmp_path / "local", budget_bytes=BUDGET)
    os.utime(source / "one.bin", (1, 1))
    assert contents(stage(source, tmp_path / "local", budget_bytes=BUDGET)) == contents(source)


@pytest.mark.parametrize("record", ["", "[1]", '{"data/one.bin": 3}', '{"data/one.bin": [1000]}'])
def test_invalid_record_is_ignored(source, tmp_path, record):
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "data.staged.json").write_text(record)
    assert contents(stage(source, tmp_path / "local", budget_bytes=BUDGET)) == contents(source)
    assert len(json.loads((tmp_path / "local" / "data.staged.json").read_text())["data/one.bin"]) == 3


def test_wrong_copy_is_rejected_and_removed(source, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "sha256", lambda path: "0" * 64)
    with pytest.raises(OSError, match="bytes read back differ"):
        stage(source, tmp_path / "local", budget_bytes=BUDGET)
    assert not contents(tmp_path / "local").keys() - {"data.staged.json"}


def test_over_budget_nothing_is_copied(source, tmp_path):
    with pytest.raises(UsageError, match=r"the budget is 5\.86 KiB"):
        stage(source, tmp_path / "local", budget_bytes=5999)
    assert contents(tmp_path / "local") == {}


def test_missing_source_and_folder_link_are_rejected(source, tmp_path):
    with pytest.raises(UsageError, match="nothing to stage"):
        stage(source / "none", tmp_path / "local", budget_bytes=BUDGET)
    (source / "elsewhere").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(DataError, match="elsewhere"):
        stage(source, tmp_path / "local", budget_bytes=BUDGET)


def test_pipe_among_the_inputs_is_an_error(source, tmp_path):
    os.mkfifo(source / "pipe")
    with pytest.raises(DataError, match="pipe cannot be copied: it is a pipe"):
        stage(source, tmp_path / "local", budget_bytes=BUDGET)
