"""Event files, read by TensorBoard's own readers."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from shoestring.training.monitor.events import Events
from shoestring.training.monitor.sinks.following import Follower
from shoestring.training.monitor.sinks.tensorboard import open_sink


def test_scalars_are_read_back(tmp_path: Path) -> None:
    path, folder = tmp_path / "events.jsonl", tmp_path / "tensorboard"
    follower = Follower(path, folder, open_sink)
    reader = EventAccumulator(str(folder))  # as of a TensorBoard that shows the run
    for start in (0, 2):
        with Events(path) as events:
            events.emit("session", update=start)
            for update in range(start + 1, start + 5):
                events.emit("progress", update=update, loss=update / 8, metrics={"reward": 1.0, "name": "text"})
            events.emit("evaluation", update=start + 4, part="validation", metrics={"accuracy": 0.5, "rows": []})
        follower.update()
        reader.Reload()
    follower.close()
    reader.Reload()
    raw = [
        event.step for file in folder.iterdir() for event in EventFileLoader(str(file)).Load() if event.summary.value
    ]
    assert raw == [1, 2, 3, 4, 5, 6, 6]
    new_reader = EventAccumulator(str(folder))
    new_reader.Reload()
    for each in (reader, new_reader):
        losses = each.Scalars("train/loss")
        assert [event.step for event in losses] == [1, 2, 3, 4, 5, 6]
        assert [event.value for event in losses] == [update / 8 for update in range(1, 7)]
        assert [event.step for event in each.Scalars("train/reward")] == [1, 2, 3, 4, 5, 6]
        assert [event.step for event in each.Scalars("validation/accuracy")] == [6]
        assert set(each.Tags()["scalars"]) == {"train/loss", "train/reward", "validation/accuracy"}
    assert losses[0].wall_time == pytest.approx(path.stat().st_mtime, abs=60)
