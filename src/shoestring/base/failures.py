"""Failures of a recipe's code: the errors that describe them, with the lines of the user's files that led to them."""

import re
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoestring.base.embedding_index import DEVICE_ASSERT, DEVICE_ASSERT_HINT, find_embedding_index
from shoestring.base.errors import Interruption, RunError, ShoestringError, UsageError
from shoestring.base.packages.broken import broken_library

TRACEBACK_VARIABLE = "SHOESTRING_TRACEBACK"
"""The environment variable that makes the command line print the whole traceback of an error."""

_TRACEBACK_HINT = f"{TRACEBACK_VARIABLE}=1 in the environment prints the whole traceback"
_PACKAGE = Path(__file__).parents[1]
_NOT_THE_USERS = re.compile(
    "|".join(
        [
            *(re.escape(f"{folder}/") for folder in (_PACKAGE, f"{_PACKAGE}_recipes", sysconfig.get_path("stdlib"))),
            ".*/(site|dist)-packages/",
            "<",
        ]
    )
)
"""The beginnings of the names of files that are Shoestring's, Python's or a library's."""
_IN_A_WORKER = "Original Traceback (most recent call last):\n"
_WORKER_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)\n *(?P<code>.*)')
_MOST_FRAMES = 8
_PARSERS = ("argparse.py", "_argument_parser.py", "_defines.py")
"""The files of argparse and of absl that end Python if an argument is missing."""
_PARSER_HINT = (
    "it parses the command line, which is that of Shoestring and has none of its arguments: move the parsing below "
    'if __name__ == "__main__": and make the arguments fields of a frozen dataclass, the recipe\'s `options`, which '
    "--set NAME=VALUE sets"
)


def describe(error: BaseException) -> ShoestringError:
    """Return an error that names an exception and the lines of the user's files that led to it.

    Without such a line the exception is a defect of Shoestring or of a library, or a library cannot be imported.
    """
    if explained := broken_library(error):
        return explained
    if index := find_embedding_index(error):
        return index.error(user_frame_texts(error))
    frames = user_frames(error)
    hint = _TRACEBACK_HINT
    if DEVICE_ASSERT in _raw_message(error):
        hint = DEVICE_ASSERT_HINT
    elif not frames:
        hint = f"this is a defect of Shoestring or of a library, please report it; {hint}"
        frames = traceback.extract_tb(error.__traceback__)[-1:]
    return RunError(f"{type(error).__name__}: {_message(error)}", problems=list(map(_frame_text, frames)), hint=hint)


def user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the innermost frames of the exception's traceback that are in the user's files, outermost first.

    torch puts the traceback of a process that loads data into the message.
    """
    frames = list(traceback.extract_tb(error.__traceback__))
    for match in _WORKER_FRAME.finditer(_raw_message(error).partition(_IN_A_WORKER)[2]):
        frames.append(traceback.FrameSummary(match["file"], int(match["line"]), match["name"], line=match["code"]))
    return [frame for frame in frames if not _NOT_THE_USERS.match(frame.filename)][-_MOST_FRAMES:]


def user_frame_texts(error: BaseException) -> list[str]:
    """Return `FILE:LINE in FUNCTION: CODE` of each of the `user_frames`."""
    return list(map(_frame_text, user_frames(error)))


def location(error: BaseException) -> str:
    """Return ` at FILE:LINE in FUNCTION` of the innermost frame in the user's files; empty without one."""
    return "".join(f" at {frame.filename}:{frame.lineno} in {frame.name}" for frame in user_frames(error)[-1:])


def exit_text(error: BaseException) -> str:
    """Describe an exception that is not an Exception, such as that of `sys.exit`, and its location."""
    if isinstance(error, SystemExit):
        status = 0 if error.code is None else error.code if isinstance(error.code, int) else 1
        return f"ended Python with status {status}{location(error)}"
    return f"raised {type(error).__name__}{location(error)}: {_message(error)}"


@contextmanager
def exits_as_errors(kind: type[ShoestringError] = RunError, subject: str = "the recipe's code") -> Iterator[None]:
    """Raise an error of this `kind` if `sys.exit` or another exception that is no Exception would end Python.

    Ctrl-C and the end of a session remain themselves.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt, GeneratorExit, Interruption):
        raise
    except BaseException as error:
        is_parser = any(Path(frame.filename).name in _PARSERS for frame in traceback.extract_tb(error.__traceback__))
        hint = _PARSER_HINT if is_parser else "a recipe must not end Python: raise an exception instead"
        raise kind(f"{subject} {exit_text(error)}", hint=hint) from error


@contextmanager
def recipe_errors(message: str) -> Iterator[None]:
    """Raise UsageError that begins with `message` for whatever the recipe's code raises, except Shoestring's errors.

    Ctrl-C remains itself.
    """
    try:
        with exits_as_errors(UsageError, f"{message}: it"):
            yield
    except ShoestringError:
        raise
    except Exception as error:
        if explained := broken_library(error):
            raise explained from error
        text = f"{message}: {type(error).__name__}: {_message(error)}{location(error)}"
        raise UsageError(text, hint=_TRACEBACK_HINT) from error


def _frame_text(frame: traceback.FrameSummary) -> str:
    return f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"


def _message(error: BaseException) -> str:
    """Return the message of an exception, of one in a process that loads data without its traceback."""
    message, _, trace = _raw_message(error).partition(_IN_A_WORKER)
    return trace.strip().splitlines()[-1].partition(": ")[2] if trace else message


def _raw_message(error: BaseException) -> str:
    """Return the message of an exception, whose `__str__` may be the recipe's and fail."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001
        return "(no message)"
