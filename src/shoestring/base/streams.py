"""Standard output and error: text that is harmless to a terminal, and streams that cannot end the program.

Messages only report. If standard error is closed, a full disk, a closed pipe or a closed terminal, they are lost, and
the work that they report continues.
"""

import errno
import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import Any, TextIO

_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls, other than tab and line feed: ESC starts terminal sequences
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line separators, and characters that reverse the order of others
    "\ud800-\udfff]"  # bytes of a path that is not UTF-8
)

_MOST_CHARACTERS = 4000
"""Of a message, which may quote a value of any length."""

_answer_streams: list[TextIO] = []
"""The standard output of the command that runs; empty outside of a command."""


def printable(text: str) -> str:
    """Replace control characters, which a terminal would obey, by their escapes: `\\x1b`. Line feeds remain."""
    return _UNPRINTABLE.sub(_escape, text)


def one_line(text: str) -> str:
    """Return `text`, such as a name or a path, as part of a line: line feeds are replaced as well."""
    return printable(text).replace("\n", "\\n")


def message_text(text: str) -> str:
    """Return a message to print. Its continuation lines are indented, so that none of them looks like a message."""
    if len(text) > _MOST_CHARACTERS:
        half = _MOST_CHARACTERS // 2
        text = f"{text[:half]} ... ({len(text) - 2 * half} more characters) ... {text[-half:]}"
    return printable(text).replace("\n", "\n  ")


def write_messages(*messages: str) -> None:
    """Write each message to standard error, on a line of its own."""
    stream = ReportStream(sys.stderr)
    stream.write("".join(f"{message_text(message)}\n" for message in messages))
    stream.flush()


def flush() -> None:
    """Flush both streams; what cannot be written remains in their buffers."""
    for stream in (answer_stream(), sys.stdout, sys.stderr):
        ReportStream(stream).flush()


class SilentStream(io.StringIO):
    """A stream whose text nobody reads."""

    def write(self, text: str) -> int:
        return len(text)


class ReportStream:
    """A text stream that never raises: what cannot be written is lost, and `error` is the reason."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream: Any = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        with self._recording():
            if self._stream is not None:
                self._write(text)
        return len(text)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
        except UnicodeEncodeError:  # such as a bar in a locale without Unicode
            encoding = self._stream.encoding
            self._stream.write(text.encode(encoding, errors="backslashreplace").decode(encoding))

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with self._recording():
            if self._stream is not None:
                self._stream.flush()

    def isatty(self) -> bool:
        with self._recording():
            return self._stream is not None and bool(self._stream.isatty())
        return False

    def is_descriptor(self, descriptor: int) -> bool:
        """Return whether the stream writes to this descriptor of the process."""
        try:
            return self._stream is not None and bool(self._stream.fileno() == descriptor)
        except (AttributeError, OSError, ValueError):
            return False

    def finish(self) -> OSError | None:
        """Flush the stream and return why text was lost, None if it was not.

        After an error the stream leads to the null device: Python would try to write its buffer again when it exits,
        and exit with status 120.
        """
        self.flush()
        error, self.error = self.error, None
        if error:
            with self._recording():
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self._stream.fileno())
                os.close(null)
                self._stream.flush()
        return error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _recording(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.error = error
        except ValueError as error:  # the stream has been closed in Python
            self.error = OSError(errno.EBADF, str(error))


@contextmanager
def usable() -> Iterator[None]:
    """Make the standard streams of this process usable, whatever they are.

    The code of libraries and recipes prints to them as well. A closed stream becomes the null device: otherwise the
    next file that is opened would get its descriptor, and C libraries would write their messages into a checkpoint.
    """
    _open_closed_descriptors()
    previous = sys.stdin, sys.stdout, sys.stderr
    output, errors = ReportStream(_stream(sys.stdout, 1)), ReportStream(_stream(sys.stderr, 2))
    streams: Any = sys
    streams.stdin, streams.stdout, streams.stderr = _stream(sys.stdin, 0), output, errors
    try:
        yield
    finally:
        output.finish()
        errors.finish()
        streams.stdin, streams.stdout, streams.stderr = previous


@contextmanager
def reserved_for_answers() -> Iterator[None]:
    """Reserve standard output for the answer of a command: what recipes and libraries print goes to standard error.

    What C code and other programs print goes there as well, if standard output is that of the process.
    """
    with ExitStack() as stack:
        stream = sys.stdout
        if isinstance(stream, ReportStream) and stream.is_descriptor(1):
            stream = stack.enter_context(_moved_output())
        _answer_streams.append(stream)
        stack.callback(_answer_streams.pop)
        with redirect_stdout(sys.stderr):
            yield


@contextmanager
def _moved_output() -> Iterator[TextIO]:
    """Move standard output to another descriptor, and let descriptor 1 be standard error."""
    original: Any = sys.stdout
    original.flush()
    descriptor = os.dup(1)
    answers: Any = ReportStream(os.fdopen(descriptor, "w", encoding=original.encoding, errors=original.errors))
    os.dup2(2, 1)
    try:
        yield answers
    finally:
        error = answers.finish()
        os.dup2(descriptor, 1)
        answers.close()
        original.error = original.error or error


def answer_stream() -> TextIO:
    """Return the stream for the answer of a command."""
    return _answer_streams[-1] if _answer_streams else sys.stdout


def is_terminal() -> bool:
    """Return whether a person types the standard input, and reads the answer of the command on a terminal."""
    try:
        return sys.stdin.isatty() and answer_stream().isatty()
    except (AttributeError, ValueError):  # a stream that is None, or was closed in Python
        return False


def lost_output() -> OSError | None:
    """Return why text written to standard output was lost; None if it was not, or if its reader had read enough.

    Text written after that is not expected to be read.
    """
    stream: Any = answer_stream()
    error = stream.finish() if isinstance(stream, ReportStream) else None
    return None if error is None or error.errno == errno.EPIPE else error


def _open_closed_descriptors() -> None:
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free descriptor, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _stream(stream: TextIO | None, descriptor: int) -> TextIO:
    """Return a standard stream, which is None in Python if its descriptor was closed."""
    return stream or os.fdopen(descriptor, "w" if descriptor else "r", encoding="utf-8", closefd=False)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
