"""`--log tensorboard`: an event file for `tensorboard --logdir`, written by TensorBoard's own writer without torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from shoestring.training.monitor.sinks.points import Point


class TensorBoard:
    """A `Sink`."""

    def __init__(self, folder: Path) -> None:
        for file in folder.glob("events.out.tfevents.*"):
            if file.is_symlink() or file.stat().st_nlink > 1:  # it is perhaps in a copy of the run (cp -al)
                file.unlink()
            else:
                # A TensorBoard that is reading it would not go on to the next file if it were removed.
                os.truncate(file, 0)
        self._writer: Any = EventFileWriter(str(folder))
        # It then forgets what it has read.
        self._writer.add_event(Event(step=0, session_log=SessionLog(status=SessionLog.START)))

    def add(self, point: Point) -> None:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
        self._writer.add_event(Event(wall_time=point.time, step=point.update, summary=Summary(value=values)))

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def open_sink(folder: Path) -> TensorBoard:
    return TensorBoard(folder)
