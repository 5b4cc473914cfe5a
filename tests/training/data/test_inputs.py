import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoestring.recipe.finding import find
from shoestring.training.data.inputs import stage_inputs
from shoestring.training.run_directory.lock import locked


@dataclass(frozen=True, kw_only=True)
class Options:
    epochs: int = 1
    effective_batch: int = 1
    seed: int = 0
    one: Path = Path()
    two: Path | None = None


class Reads:
    def __init__(self, options=None):
        self.options = options or Options()

    def model(self): ...
    def batch(self, size): ...
    def loss(self, model, batch): ...


@pytest.fixture
def sources(tmp_path, monkeypatch):
    (tmp_path / "local").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "local"))
    for name in "one", "two":
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.csv").write_bytes(name.encode() * 100)  # 300 bytes, both with the same name
    return {name: tmp_path / name / "rows.csv" for name in ("one", "two")}


def stage_and_read(sources, setting, disk_bytes=None):
    loaded, notes = stage_inputs(
        find(Reads()).replace(**sources), setting, disk_bytes=disk_bytes, report=lambda _: None
    )
    return loaded.paths, notes


def test_nothing_is_staged_by_default(sources, tmp_path):
    assert stage_and_read(sources, "no") == (sources, [])
    assert not list((tmp_path / "local").iterdir())


def test_every_path_is_read_from_a_verified_copy(sources, tmp_path):
    paths, notes = stage_and_read(sources, "yes")
    for name, path in paths.items():
        assert path.is_relative_to(tmp_path / "local") and path.read_bytes() == sources[name].read_bytes()
    assert "300 B copied now" in notes[0] and len(notes) == 2
    paths_again, notes = stage_and_read(sources, "yes")
    assert paths_again == paths and all("0 B copied now" in note for note in notes)


def test_budget_replaces_the_limit_of_the_disk(sources):
    paths, _ = stage_and_read(sources, "500MB", disk_bytes=0)
    assert all(paths[name] != sources[name] for name in paths)


def test_all_inputs_share_half_of_the_disk(sources):
    paths, notes = stage_and_read(sources, "yes", disk_bytes=1200)
    assert paths["one"] != sources["one"] and paths["two"] == sources["two"]
    assert "two is not staged and is read from its source" in notes[1] and "the budget is" in notes[1]


def test_missing_or_locked_source_does_not_end_the_run(sources, tmp_path):
    paths, _ = stage_and_read(sources, "yes")
    with locked(paths["one"].parents[1]):
        paths_again, notes = stage_and_read({**sources, "two": tmp_path / "none"}, "yes")
    assert paths_again == {"one": sources["one"], "two": tmp_path / "none"}
    assert "nothing to stage" in notes[1]


def test_folder_writable_by_others_is_not_used(sources, tmp_path):
    folder = tmp_path / "local" / f"shoestring-inputs-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    paths, notes = stage_and_read(sources, "yes")
    assert paths == sources and "belongs to another user" in notes[0]


class NoPath:
    def model(self): ...
    def batch(self, size): ...
    def loss(self, model, batch): ...


def test_recipe_without_paths_gets_a_note():
    loaded = find(NoPath())
    unchanged, notes = stage_inputs(loaded, "yes", disk_bytes=None, report=lambda _: None)
    assert unchanged is loaded and "none of the recipe's options is a path" in notes[0]
