import shutil
from pathlib import Path
from typing import Any

import pytest

from shoestring.planning.simulator.inside import files as module
from shoestring.planning.simulator.inside.events import Events
from shoestring.planning.simulator.inside.files import Files


@pytest.fixture
def observed(tmp_path: Path) -> tuple[Files, Any, Any]:
    """The files that are observed, a function that writes one, and one that returns the last event."""
    rehearsal, work = tmp_path / "rehearsal", tmp_path / "work"
    rehearsal.mkdir()
    work.mkdir()
    events = Events(str(rehearsal))
    told: list[dict[str, Any]] = []
    events.write = lambda kind, **values: told.append(values)  # type: ignore[method-assign]
    files = Files(events)

    def write(name: str, size: int) -> Path:
        path = work / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(size))
        files.add(path)
        return path

    def last() -> dict[str, Any]:
        files.tell()
        return told[-1]

    return files, write, last


def test_the_largest_sum_of_what_exists_at_one_time(observed: tuple[Files, Any, Any]) -> None:
    files, write, last = observed
    first = write("one/weights", 1000)
    files.saved()
    second = write("two/weights", 1000)
    files.removed(first.parent)  # what shutil.rmtree announces
    shutil.rmtree(first.parent)
    third = write("three/weights", 500)
    files.measure()
    assert last() == {
        "files": {str(first): 1000, str(second): 1000, str(third): 500},
        "count": 3,
        "largest_total_bytes": 2000,
    }


def test_a_renamed_folder_keeps_its_files(observed: tuple[Files, Any, Any]) -> None:
    files, write, last = observed
    path = write("temporary/weights", 10)
    final = path.parent.parent / "final"
    path.parent.rename(final)
    files.renamed(path.parent, final)
    files.measure()
    assert last()["files"] == {str(final / "weights"): 10}


def test_what_is_no_file_of_the_script(observed: tuple[Files, Any, Any], tmp_path: Path) -> None:
    files, _, _ = observed
    for path in ("/dev/null", "/proc/self/status", tmp_path / "rehearsal" / "events.1.jsonl", tmp_path / "a.pyc.123"):
        files.add(path)
    files.opened(3, module._WRITTEN)
    files.opened(str(tmp_path / "read"), 0)
    assert not files._sizes
    files.opened(str(tmp_path / "written"), module._WRITTEN)
    assert len(files._sizes) == 1


def test_the_number_of_files_is_bounded(observed: tuple[Files, Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    files, write, last = observed
    monkeypatch.setattr(module, "MOST_FILES", 3)
    monkeypatch.setattr(module, "LISTED_FILES", 2)
    for number in range(5):
        write(str(number), 10 + number)
    files.measure()
    assert list(last()["files"].values()) == [12, 11]
    assert last()["count"] == 3


def test_parts_that_were_never_written_take_no_space(observed: tuple[Files, Any, Any]) -> None:
    files, write, last = observed
    path = write("sparse", 10)
    with path.open("r+b") as file:
        file.truncate(2**34)
    files.measure()
    assert last()["largest_total_bytes"] < 2**20
