"""The startup benchmark, including a package that completes no update."""

import json
from pathlib import Path

import pytest
from benchmarks.speed import start


@pytest.mark.slow
def test_one_round_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "start.json"
    assert start.main(["--times", "1", "--set", "size=tiny", "--json", str(out)]) == 0
    content = json.loads(out.read_text())
    (row,) = content["rows"]
    assert row["name"] == "here" and row["times"] == 1 and content["set"] == ["size=tiny"]
    assert 0 < row["imports"] < row["seconds"] == row["least_seconds"] == row["most_seconds"]
    assert row["beyond"] == row["seconds"] - row["imports"]
    assert row["processor_seconds"] > row["processor_imports"] > 0
    assert "beyond" in capsys.readouterr().out


def test_median_is_reported() -> None:
    starts = [start.Start(seconds=seconds, processor_seconds=2 * seconds) for seconds in (9.0, 4.0, 5.0)]
    imports = [start.Start(seconds=1.0, processor_seconds=0.5)] * 3
    row = start.Starts(name="here", starts=starts, imports=imports).json()
    assert (row["seconds"], row["beyond"], row["processor_beyond"]) == (5.0, 4.0, 9.5)
    assert (row["least_seconds"], row["most_seconds"]) == (4.0, 9.0)


def test_version_without_update_is_an_error_with_its_output(tmp_path: Path) -> None:
    (tmp_path / "shoestring").mkdir()
    (tmp_path / "shoestring/__init__.py").touch()
    (tmp_path / "shoestring/__main__.py").write_text("raise SystemExit('nothing to train')")
    with pytest.raises(RuntimeError, match="nothing to train"):
        start.time_start(tmp_path, [])


def test_folder_without_the_package_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        start.main(["--compare", str(tmp_path)])
    assert exit_info.value.code == 2 and "no package shoestring" in capsys.readouterr().err
