"""What a command prints: its answer or an error, and its exit status."""

import json
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from shoestring.base import failures, streams
from shoestring.base.errors import RunError, ShoestringError, UsageError
from shoestring.base.json_values import encode_record
from shoestring.base.packages.broken import broken_library
from shoestring.base.system_errors import explain
from shoestring.base.troubleshooting import explanation

_CTRL_C = 130
"""The status with which typer answers Ctrl-C. No command has it."""


def status_of(command: Callable[[], Any]) -> int:
    """Run a command and return its exit status. An error is printed."""
    try:
        status = command()
        if status == _CTRL_C:
            raise KeyboardInterrupt
        if error := streams.lost_output():
            raise RunError(f"standard output could not be written: {error}")
    except ShoestringError as error:
        return print_error(error)
    except typer.Abort as abort:
        return print_error(failures.describe(abort.__cause__ or abort))
    except SystemExit as exit_:
        if not failures.user_frames(exit_):
            raise  # of shell completion, or of a supervisor
        return print_error(RunError(f"the recipe's code {failures.exit_text(exit_)}"))
    except Exception as error:  # noqa: BLE001  (the recipe's code may raise anything)
        if hasattr(error, "format_message"):
            return _print_typer_error(error)
        if explained := broken_library(error):
            return print_error(explained, error)
        if isinstance(error, OSError) and not failures.user_frames(error):
            return print_error(explain("the system refused an operation", error))
        return print_error(failures.describe(error), error)
    return status or 0


def print_answer(facts: Any, as_json: bool, document: Callable[[], Any]) -> None:
    """Print the answer: its facts as JSON, or what `document` returns, a document or several."""
    if as_json:
        print(json.dumps(encode_record(facts), indent=1, allow_nan=False), file=streams.answer_stream())
        return
    from shoestring.answers.document import Document
    from shoestring.answers.renderers.terminal.console import SafeConsole
    from shoestring.answers.renderers.terminal.document import render

    answer = document()
    console = SafeConsole(file=streams.answer_stream())
    for part in answer if isinstance(answer, list) else [answer]:
        # Commands stay on one line, however long.
        console.print(render(part) if isinstance(part, Document) else part, crop=False)


def print_error(error: Exception, cause: BaseException | None = None) -> int:
    """Print an error, and return the exit status."""
    if os.environ.get(failures.TRACEBACK_VARIABLE):
        streams.write_messages(*"".join(traceback.format_exception(cause or error)).splitlines())
    message, *lines = error.lines() if isinstance(error, ShoestringError) else [str(error)]
    page = explanation(message)
    lines += [f"see {page}"] if page else []
    streams.write_messages(f"error: {message}", *lines, *getattr(cause or error, "__notes__", ()))
    return error.status if isinstance(error, ShoestringError) else 1


def _print_typer_error(error: Any) -> int:
    """Print an error in the command line itself: an unknown command, a missing or invalid option."""
    context = getattr(error, "ctx", None)
    if not error.format_message():  # a group without a command: typer has printed its help
        return 2
    command = context.command_path if context else "shoestring"
    return print_error(UsageError(error.format_message(), hint=f"see {command} --help"))


def show_progress(text: str) -> Any:
    """Return a context manager with a spinner on stderr if that is a terminal, for work of a few seconds."""
    from contextlib import nullcontext

    from rich.text import Text

    from shoestring.answers.renderers.terminal.console import SafeConsole

    console = SafeConsole(stderr=True)
    return console.status(Text(f"{text} …")) if console.is_terminal else nullcontext()


@contextmanager
def show_seconds_left(text: str) -> Iterator[Callable[[float], None]]:
    """Show on stderr how long work of minutes still takes; the value is called with the seconds that are left.

    On a terminal one line changes; otherwise a line follows about every 15 seconds.
    """
    from rich.text import Text

    from shoestring.answers.renderers.terminal.console import SafeConsole
    from shoestring.base.units import seconds_text

    console = SafeConsole(stderr=True)
    if console.is_terminal:
        with console.status(Text(f"{text} …")) as status:
            yield lambda seconds: status.update(Text(f"{text}, {seconds_text(seconds)} left …"))
        return
    last_line = time.monotonic() - 15.0

    def write_line(seconds: float) -> None:
        nonlocal last_line
        if time.monotonic() - last_line >= 15.0:
            last_line = time.monotonic()
            streams.write_messages(f"{text}, {seconds_text(seconds)} left")

    yield write_line
