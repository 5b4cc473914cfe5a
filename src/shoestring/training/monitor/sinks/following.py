"""Writing a run's record to a sink while it grows.

A session that is killed repeats the updates after its last checkpoint, and what the record has of them is superseded. A
sink cannot take back what it has written, so it is written anew then, from the whole record: each update is in it once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from shoestring.training.monitor.events import current, read_complete
from shoestring.training.monitor.sinks import Sink
from shoestring.training.monitor.sinks.points import Point, point

_FIELDS = ("event", "update", "back_to", "part")
"""The fields that decide what is superseded."""


class Follower:
    """Writes the points of the record `events_file` to a sink in `folder`, which belongs to the sink alone."""

    def __init__(self, events_file: Path, folder: Path, open_sink: Callable[[Path], Sink]) -> None:
        self._events_file = events_file
        self._folder = folder
        self._open_sink = open_sink
        self._sink: Sink | None = None
        self._offset = 0
        self._last_update = 0
        self._evaluated: set[tuple[Any, Any]] = set()

    def update(self) -> None:
        """Write what the record has gained. Raises whatever the sink raises."""
        events, offset = read_complete(self._events_file, self._offset)
        if self._sink is None or offset < self._offset or self._is_superseding(events):
            if self._sink:
                self._sink.close()
            events, offset = read_complete(self._events_file, 0)
            events = current(_shortened(events))
            self._last_update, self._evaluated = 0, set()
            self._folder.mkdir(parents=True, exist_ok=True)
            if self._folder.is_symlink():
                raise OSError(f"{self._folder} is a symbolic link")
            self._sink = self._open_sink(self._folder)
        self._offset = offset
        for event in events:
            self._remember(event)
            if (new := _point(event)) is not None:
                self._sink.add(new)
        if events:
            self._sink.flush()

    def close(self) -> None:
        """Close the sink. Raises whatever it raises."""
        if self._sink:
            self._sink.close()

    def _is_superseding(self, events: Iterable[dict[str, Any]]) -> bool:
        """Return whether some of these events supersede what was written, or each other."""
        last_update, evaluated = self._last_update, set(self._evaluated)
        for event in events:
            kind, update = event["event"], event.get("update", 0)
            if (kind == "session" or "back_to" in event) and event.get("back_to", update) < last_update:
                return True
            if kind == "evaluation":
                if (update, event.get("part")) in evaluated:
                    return True
                evaluated.add((update, event.get("part")))
            if kind in ("progress", "evaluation"):
                last_update = max(last_update, update)
        return False

    def _remember(self, event: dict[str, Any]) -> None:
        if event["event"] in ("progress", "evaluation"):
            self._last_update = max(self._last_update, event.get("update", 0))
        if event["event"] == "evaluation":
            self._evaluated.add((event.get("update", 0), event.get("part")))


def _shortened(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events with their points and nothing else that takes much memory."""
    return [{**{name: event[name] for name in _FIELDS if name in event}, "point": point(event)} for event in events]


def _point(event: dict[str, Any]) -> Point | None:
    return event["point"] if "point" in event else point(event)
