"""A sink has each update once, whatever the sessions were."""

import csv
import random
from pathlib import Path

import pytest

from shoestring.training.monitor.events import Events, current, read
from shoestring.training.monitor.sinks.csv_file import open_sink
from shoestring.training.monitor.sinks.following import Follower


def rows(folder: Path) -> list[tuple[int, str, float]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return [(int(row["update"]), row["name"], float(row["value"])) for row in csv.DictReader(file)]


def expected(path: Path) -> list[tuple[int, str, float]]:
    """The losses of the record without superseded work."""
    result = []
    for event in current(read(path)):
        if event["event"] == "progress":
            result.append((event["update"], "train/loss", event["loss"]))
        elif event["event"] == "evaluation":
            result.append((event["update"], f"{event['part']}/loss", event["metrics"]["loss"]))
    return result


@pytest.mark.parametrize("seed", range(8))
def test_each_update_is_written_once(tmp_path: Path, seed: int) -> None:
    """Sessions are killed and continue earlier, updates are taken back after out-of-memory, lines are incomplete."""
    draw = random.Random(seed)
    path, folder = tmp_path / "events.jsonl", tmp_path / "logs" / "csv"
    update = 0
    follower = Follower(path, folder, open_sink)
    for _ in range(6):
        update = draw.randint(0, update)
        with Events(path) as events:
            if draw.random() < 0.5:
                follower.close()
                follower = Follower(path, folder, open_sink)
            events.emit("session", update=update)
            for _ in range(draw.randint(0, 12)):
                update += 1
                events.emit("progress", update=update, loss=draw.random())
                if draw.random() < 0.2:
                    events.emit("evaluation", update=update, part="validation", metrics={"loss": draw.random()})
                if draw.random() < 0.1:
                    update = draw.randint(0, update)
                    events.emit("oom", update=update, back_to=update)
                if draw.random() < 0.4:
                    follower.update()
        if draw.random() < 0.5:
            with path.open("ab") as file:
                file.write(b'{"event": "progress", "upd')
        follower.update()
        assert rows(folder) == expected(path)
    follower.close()


def test_line_that_is_being_written_is_read_when_it_is_complete(tmp_path: Path) -> None:
    path, folder = tmp_path / "events.jsonl", tmp_path / "csv"
    with Events(path) as events:
        events.emit("session", update=0)
        events.emit("progress", update=1, loss=0.5)
    whole = path.read_bytes()
    follower = Follower(path, folder, open_sink)
    for size in (0, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        follower.update()
        assert rows(folder) == []
    path.write_bytes(whole)
    follower.update()
    assert rows(folder) == [(1, "train/loss", 0.5)]
    follower.close()


def test_no_record_yet(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "events.jsonl", tmp_path / "csv", open_sink)
    follower.update()
    follower.close()
    assert rows(tmp_path / "csv") == []


def test_linked_folder_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").touch()
    (tmp_path / "csv").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        Follower(tmp_path / "events.jsonl", tmp_path / "csv", open_sink).update()
    assert (tmp_path / "elsewhere" / "file").exists()
