import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoestring.data.inputs import staged
from shoestring.recipe.finding import find
from shoestring.session.lock import locked


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
        (tmp_path / name / "rows.csv").write_bytes(name.encode() * 100)  # 300 bytes, and both of one name
    return {name: tmp_path / name / "rows.csv" for name in ("one", "two")}


def read(sources, wanted, disk_bytes=None):
    loaded, told = staged(find(Reads()).replace(**sources), wanted, disk_bytes=disk_bytes, say=lambda _: None)
    return loaded.paths, told


def test_by_default_nothing_is_staged(sources, tmp_path):
    assert read(sources, "no") == (sources, [])
    assert not list((tmp_path / "local").iterdir())


def test_every_path_is_read_from_a_verified_copy_and_told(sources, tmp_path):
    paths, told = read(sources, "yes")
    for name, path in paths.items():
        assert path.is_relative_to(tmp_path / "local") and path.read_bytes() == sources[name].read_bytes()
    assert "300 B copied now" in told[0] and len(told) == 2
    again, told = read(sources, "yes")
    assert again == paths and all("0 B copied now" in line for line in told)


def test_a_budget_that_is_given_counts_instead_of_the_disks_limit(sources):
    paths, _ = read(sources, "500MB", disk_bytes=0)
    assert all(paths[name] != sources[name] for name in paths)


def test_half_of_the_disks_limit_is_for_all_inputs_together(sources):
    paths, told = read(sources, "yes", disk_bytes=1200)
    assert paths["one"] != sources["one"] and paths["two"] == sources["two"]
    assert "two is read where it lies" in told[1] and "the budget is" in told[1]


def test_nor_does_a_source_that_is_not_there_or_in_other_hands_end_the_run(sources, tmp_path):
    paths, _ = read(sources, "yes")
    with locked(paths["one"].parents[1]):
        again, told = read({**sources, "two": tmp_path / "none"}, "yes")
    assert again == {"one": sources["one"], "two": tmp_path / "none"}
    assert "nothing to stage" in told[1]


def test_a_folder_that_somebody_else_could_write_to_is_not_used(sources, tmp_path):
    folder = tmp_path / "local" / f"shoestring-inputs-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    paths, told = read(sources, "yes")
    assert paths == sources and "belongs to somebody else" in told[0]


class NoPath:
    def model(self): ...
    def batch(self, size): ...
    def loss(self, model, batch): ...


def test_a_recipe_without_paths_is_told_so():
    loaded = find(NoPath())
    same, told = staged(loaded, "yes", disk_bytes=None, say=lambda _: None)
    assert same is loaded and "none of the recipe's options is a path" in told[0]
