"""Every error a person may see, and the exit status it ends a command with.

ShoestringError
├── UsageError          2  the question was wrong: an unknown name, a bad value, a file that cannot be used
│   └── DataError          2  the data cannot be trained on; every problem at once, with its line
└── RunError               1  the question was right, the run failed
    ├── TraceError         1  one training step of the model could not be followed
    └── CheckpointError    1  a state cannot be written, verified or restored
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from shoestring.renamed import attributes_of


class ShoestringError(Exception):
    """What went wrong with the value seen (`message`), every single `problem`, and a `hint` what to do."""

    status = 1

    def __init__(self, message: str, *, problems: Sequence[str] = (), hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.problems = tuple(problems)
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.message, *(f"  - {problem}" for problem in self.problems)]
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


class UsageError(ShoestringError):
    """The question cannot be answered as it was asked."""

    status = 2


class DataError(UsageError):
    """The data cannot be trained on."""


class RunError(ShoestringError):
    """A run or a check failed."""


class TraceError(RunError):
    """One training step of the model could not be followed on the pretend GPU."""


class CheckpointError(RunError):
    """A training state cannot be written, verified or restored."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown `name`: the known one it resembles, or all of them."""
    known = list(known)
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(known) or 'none'}"


if not TYPE_CHECKING:  # it would take any misspelled name for one of the old ones
    __getattr__ = attributes_of(__name__)
