"""The microbatches with which a run has made its updates, from its events: they decide how gradients were rounded."""

import re
from bisect import bisect_right
from collections.abc import Iterable

from shoestring.base.reading import is_count
from shoestring.training.monitor.events import Event

_SMALLER = re.compile(r"microbatch ([0-9]{1,9})")
"""The description of a smaller microbatch among the fallbacks (`techniques/fallbacks.py`)."""


class RecordedSizes:
    """The microbatch of each update, as far as it is recorded; what a later session has repeated counts."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._firsts, self._sizes = list[int](), list[object]()
        for event in events:
            if event["event"] == "session":
                self._continue_at(event.get("update"), event.get("micro_batch"))
            elif event["event"] == "oom" and event.get("during") != "evaluation":
                smaller = _SMALLER.fullmatch(str(event.get("done")))
                if smaller:
                    self._continue_at(event.get("back_to", event.get("update")), int(smaller[1]))

    def micro_batch(self, update: int) -> int | None:
        """Return the microbatch of update number `update` (from 0); None if it is not recorded."""
        position = bisect_right(self._firsts, update)
        size = self._sizes[position - 1] if position else None
        return size if isinstance(size, int) and is_count(size) and size else None

    def _continue_at(self, update: object, size: object) -> None:
        """Record that updates from number `update` on are made, perhaps again, with microbatches of this size."""
        if isinstance(update, int):
            position = bisect_right(self._firsts, update - 1)
            self._firsts[position:], self._sizes[position:] = [update], [size]
