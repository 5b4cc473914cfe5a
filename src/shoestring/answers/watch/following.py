"""Views of a run, one after the other, and a page that is written again whenever the run has changed."""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoestring.answers.page_file import require_output, write_page
from shoestring.answers.renderers.page.document import render
from shoestring.answers.report.document import document
from shoestring.answers.report.run import read
from shoestring.answers.watch.view import View
from shoestring.answers.watch.watcher import Watcher

_PAGE_SECONDS = 5.0
_IDLE = 20
"""A view or a page that takes a second to make is followed by a pause of this many seconds: training needs the
processor."""


def follow(path: Path, *, page: Path | None = None, every_seconds: float = 1.0) -> Iterator[View]:
    """Yield a view of the run about every second, whether it has changed or not, until the run is finished.

    Raises UsageError when `path` is not the directory of a run, or `page` a path that must not be written.
    """
    watcher = Watcher(path)
    live_page = _LivePage(path, page) if page else None
    while True:
        started = time.monotonic()
        view = watcher.view()
        view_seconds = time.monotonic() - started
        if live_page:
            live_page.write(view)
        yield view
        if view.status == "finished":
            return
        time.sleep(max(every_seconds, _IDLE * view_seconds))


class _LivePage:
    """The report of a run as a page that the browser loads again and again."""

    def __init__(self, run: Path, file: Path) -> None:
        require_output(file, [run])
        self._run, self._file = run, file
        self._facts: dict[str, Any] = {}
        self._due, self._interval = 0.0, _PAGE_SECONDS

    def write(self, view: View) -> None:
        """Write the page if the run has changed, and not too often; the last page of a finished run stays as it is."""
        facts, is_finished = view.json(), view.status == "finished"
        if facts == self._facts or (time.monotonic() < self._due and not is_finished):
            return
        if view.status == "starting":
            return  # there is no run to read yet
        started = time.monotonic()
        refresh_seconds = None if is_finished else math.ceil(self._interval)
        write_page(self._file, render(document(read(self._run)), refresh_seconds=refresh_seconds), ", then watch again")
        self._interval = max(_PAGE_SECONDS, _IDLE * (time.monotonic() - started))
        self._facts, self._due = facts, time.monotonic() + self._interval
