import json
import os
from itertools import count

import pytest

from shoestring.checkpoint import files
from shoestring.data import staging
from shoestring.data.staging import stage
from shoestring.errors import DataError, UsageError

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


def test_a_folder_is_staged_whole_with_progress(source, tmp_path):
    told = []
    found = stage(source, tmp_path / "local", budget_bytes=BUDGET, progress=lambda *seen: told.append(seen))
    assert found == tmp_path / "local" / "data"
    assert contents(found) == contents(source)
    assert told[-1] == (6000, 6000) and [done for done, _ in told] == sorted(done for done, _ in told)


def test_a_single_file_too(source, tmp_path):
    found = stage(source / "one.bin", tmp_path / "local", budget_bytes=1000)
    assert found.read_bytes() == (source / "one.bin").read_bytes()


def test_what_is_there_is_not_copied_again_and_what_changed_is(source, tmp_path, monkeypatch):
    copied = []
    whole = staging._copied
    monkeypatch.setattr(staging, "_copied", lambda *what: copied.append(what[0].name) or whole(*what))
    stage(source, tmp_path / "local", budget_bytes=BUDGET)
    assert sorted(copied) == ["empty", "one.bin", "two.bin"]
    copied.clear()
    stage(source, tmp_path / "local", budget_bytes=BUDGET)
    assert copied == []
    (source / "one.bin").write_bytes(b"!" * 1000)
    os.utime(source / "one.bin", (1, 1))
    (tmp_path / "local" / "data" / "deep" / "two.bin").write_bytes(b"?" * 5000)
    (source / "empty").unlink()
    found = stage(source, tmp_path / "local", budget_bytes=BUDGET)
    assert copied == ["two.bin", "one.bin"] and contents(found) == contents(source)


def test_a_copy_that_was_cut_short_goes_on(source, tmp_path, monkeypatch):
    whole, copies = staging._copied, count()

    def cut(*what):
        if next(copies) == 2:
            raise KeyboardInterrupt
        return whole(*what)

    monkeypatch.setattr(staging, "_copied", cut)
    with pytest.raises(KeyboardInterrupt):
        stage(source, tmp_path / "local", budget_bytes=BUDGET)
    told = []
    stage(source, tmp_path / "local", budget_bytes=BUDGET, progress=lambda *seen: told.append(seen))
    assert next(copies) == 4 and told[0] == (5000, 6000)


def test_a_draft_takes_no_files_place(source, tmp_path):
    (source / "one.bin.part").write_bytes(b"no draft")
    stage(source, tmp_path / "local", budget_bytes=BUDGET)
    os.utime(source / "one.bin", (1, 1))
    assert contents(stage(source, tmp_path / "local", budget_bytes=BUDGET)) == contents(source)


@pytest.mark.parametrize("record", ["", "[1]", '{"data/one.bin": 3}', '{"data/one.bin": [1000]}'])
def test_a_record_that_is_no_record_is_no_harm(source, tmp_path, record):
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "data.staged.json").write_text(record)
    assert contents(stage(source, tmp_path / "local", budget_bytes=BUDGET)) == contents(source)
    assert len(json.loads((tmp_path / "local" / "data.staged.json").read_text())["data/one.bin"]) == 3


def test_a_copy_that_is_not_what_was_read_is_refused_and_removed(source, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "sha256", lambda path: "0" * 64)
    with pytest.raises(OSError, match="bytes read back differ"):
        stage(source, tmp_path / "local", budget_bytes=BUDGET)
    assert not contents(tmp_path / "local").keys() - {"data.staged.json"}


def test_over_budget_nothing_is_copied(source, tmp_path):
    with pytest.raises(UsageError, match=r"the budget is 5\.86 KiB"):
        stage(source, tmp_path / "local", budget_bytes=5999)
    assert contents(tmp_path / "local") == {}


def test_what_is_not_there_and_what_leads_elsewhere_are_refused(source, tmp_path):
    with pytest.raises(UsageError, match="nothing to stage"):
        stage(source / "none", tmp_path / "local", budget_bytes=BUDGET)
    (source / "elsewhere").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(DataError, match="elsewhere"):
        stage(source, tmp_path / "local", budget_bytes=BUDGET)
