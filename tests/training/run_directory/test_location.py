"""Which files lie in a run's directory, however the path leads there."""

from pathlib import Path

import pytest

from shoestring.training.run_directory.location import find_run


@pytest.fixture
def run(tmp_path):
    folder = tmp_path.resolve() / "run"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "plan.json").touch()
    for path in (folder / "run.toml", folder / "deep" / "er" / "run.toml", tmp_path / "run.toml"):
        path.touch()
    return folder


def test_file_of_a_run_and_of_its_folders(run, monkeypatch):
    assert find_run(run / "run.toml") == run
    assert find_run(run / "deep" / "er" / "run.toml") == run
    assert find_run(run.parent / "run.toml") is None
    assert find_run(run.parent / "run.toml", [run.parent]) == run.parent
    monkeypatch.chdir(run / "deep")
    for path in ("er/run.toml", "../run.toml", "er/../../deep/../run.toml"):
        assert find_run(Path(path)) == run
    assert find_run(Path("../../run.toml")) is None


@pytest.mark.parametrize(
    "name", ["state.json", "events.jsonl", "planning.jsonl", "checkpoints", "best", "manifest.json"]
)
def test_one_file_of_a_run_is_enough(tmp_path, name):
    (tmp_path / "a").mkdir()
    assert find_run(tmp_path / "a" / "run.toml") is None
    (tmp_path / "a" / name).symlink_to("nowhere")
    assert find_run(tmp_path / "a" / "run.toml") == tmp_path.resolve() / "a"


def test_links_are_followed_one_by_one(run):
    base = run.parent
    (base / "file").symlink_to(run / "run.toml")
    (base / "folder").symlink_to("run/deep")
    (run / "outside").symlink_to(base / "run.toml")
    (run / "out").symlink_to("..")
    (base / "around").symlink_to("run/out")
    (base / "again").symlink_to("around")
    for path in ("file", "folder/er/run.toml", "run/outside", "again/run.toml", "around/run.toml"):
        assert find_run(base / path) == run, path
    (base / "harmless").symlink_to(base / "run.toml")
    assert find_run(base / "harmless") is None
    (base / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="links"):
        find_run(base / "loop")
