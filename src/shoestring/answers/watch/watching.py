"""Showing a run while it is watched: redrawn on a terminal, one block for each change elsewhere, or JSON lines."""

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from rich.live import Live

from shoestring.answers.renderers.terminal.console import SafeConsole
from shoestring.answers.watch.screen import Screen
from shoestring.answers.watch.view import View
from shoestring.base import streams

_BLOCK_SECONDS = 10.0
"""Between two blocks; a change of the status is shown at once."""


def show(views: Iterable[View], *, as_json: bool) -> None:
    """Show views until they end, the reader has gone, or the user presses Ctrl-C, which is no error."""
    stream = streams.answer_stream()
    console = SafeConsole(file=stream)
    with suppress(KeyboardInterrupt):
        if as_json:
            _print_lines(_until_closed(views, stream), stream)
        elif console.is_terminal and not console.is_dumb_terminal:
            _redraw(views, console)
        else:
            _print_blocks(_until_closed(views, stream), console)


def _print_lines(views: Iterable[View], stream: Any) -> None:
    previous: dict[str, Any] = {}
    for view in views:
        if (facts := view.json()) != previous:
            print(json.dumps(facts, allow_nan=False), file=stream, flush=True)
            previous = facts


def _redraw(views: Iterable[View], console: SafeConsole) -> None:
    # No thread redraws: each view is drawn once.
    with Live(
        console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False, vertical_overflow="crop"
    ) as live:
        for view in views:
            live.update(Screen(view), refresh=True)


def _print_blocks(views: Iterable[View], console: SafeConsole) -> None:
    previous: View | None = None
    newest: View | None = None
    printed_at = 0.0
    for view in views:
        newest = view
        is_due = time.monotonic() - printed_at >= _BLOCK_SECONDS
        if previous is None or view.status != previous.status or (is_due and view.json() != previous.json()):
            _print_block(view, console)
            previous, printed_at = view, time.monotonic()
    if newest and previous and newest.json() != previous.json():
        _print_block(newest, console)


def _print_block(view: View, console: SafeConsole) -> None:
    console.print(Screen(view))
    console.print()
    console.file.flush()


def _until_closed(views: Iterable[View], stream: Any) -> Iterator[View]:
    """End when what was written could not be written: the reader of a pipe has gone."""
    for view in views:
        yield view
        if getattr(stream, "error", None):
            return
