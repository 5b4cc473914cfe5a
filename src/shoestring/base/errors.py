"""The errors that users see, and the exit status of a command that ends with one.

ShoestringError
├── UsageError          2  invalid usage: an unknown name, an invalid value, a file that cannot be used
│   └── DataError          2  invalid training data, with the line of each problem
└── RunError               1  the run or the check failed
    ├── TraceError         1  a training step of the model could not be traced
    └── CheckpointError    1  a checkpoint could not be written, verified or restored
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from shoestring.base.renamed import attributes_of
from shoestring.base.streams import printable


class ShoestringError(Exception):
    """An error with a `message` that names the value seen, a list of `problems`, and a `hint` that says what to do."""

    status = 1

    def __init__(self, message: str, *, problems: Sequence[str] = (), hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.problems = tuple(problems)
        self.hint = hint

    def __str__(self) -> str:
        return printable("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """Return the message, the problems and the hint. Each is one line, unless it quotes a message of several."""
        hint = [f"hint: {self.hint}"] if self.hint else []
        return [self.message, *(f"  - {problem}" for problem in self.problems), *hint]


class UsageError(ShoestringError):
    """Invalid usage: an unknown name, an invalid value, or a file that cannot be used."""

    status = 2


class DataError(UsageError):
    """The training data is invalid."""


class RunError(ShoestringError):
    """The run or the check failed."""


class TraceError(RunError):
    """A training step of the model could not be traced on the simulated GPU."""


class CheckpointError(RunError):
    """A checkpoint could not be written, verified or restored."""


class Interruption(BaseException):
    """Unwinds work that has to stop. It is no Exception, because it may pass through code that catches those."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown `name`: the most similar known name, or all known names."""
    known = list(known)
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"available: {', '.join(known) or 'none'}"


if not TYPE_CHECKING:  # a type checker would accept every misspelled name
    __getattr__ = attributes_of(__name__)
