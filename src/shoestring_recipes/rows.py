"""Unusable rows of data files: reported together with file and line, or skipped and counted, but never replaced."""

import re
from pathlib import Path
from typing import Literal, TypeAlias

from shoestring.base.errors import DataError
from shoestring.base.units import count_text

OnBadRows: TypeAlias = Literal["refuse", "skip"]
"""The values of the option `on_bad_rows`."""

MAX_LISTED = 20
"""The number of unusable rows that a message lists at most."""

_HALF_CHARACTER = re.compile("[\ud800-\udfff]")


def character_problem(text: str) -> str | None:
    """Return why a text cannot be one that a person has written; None if it can."""
    if "\0" in text:
        return "contains a NUL character, which no text has"
    return "contains half a character" if _HALF_CHARACTER.search(text) else None


class BadRows:
    """Collects the unusable rows of some files. Use it while reading::

    bad_rows = BadRows(on_bad_rows)
    for number, line in enumerate(file, start=1):
        if not is_good(line):
            bad_rows.report(path, number, "has no label")
    bad_rows.finish(number)
    notes += bad_rows.notes
    """

    def __init__(self, on_bad_rows: OnBadRows) -> None:
        self._skips = on_bad_rows == "skip"
        self._problems: list[str] = []
        self._count = 0
        self.notes: list[str] = []
        """A summary of the skipped rows; empty before `finish()`."""

    def report(self, path: Path, line: int | None, reason: str) -> None:
        """Record the unusable row in `line` (from 1), or the whole file where `line` is None."""
        self._count += 1
        if len(self._problems) < MAX_LISTED:
            self._problems.append(f"{path}, line {line}: {reason}" if line is not None else f"{path}: {reason}")

    def finish(self, row_count: int, *, hint_for_all: str = "", alternative: str = "") -> None:
        """Report the unusable rows after all `row_count` rows (unusable ones included) were read.

        If no row can be used, `hint_for_all` says what may be the reason. `alternative` is another way to use some of
        the rows, for the hint.

        Raises DataError listing them, unless unusable rows are skipped and at least one usable row remains.
        """
        if not self._count:
            return
        message = f"{count_text(self._count)} of {count_text(row_count)} rows cannot be used"
        unlisted = self._count - len(self._problems)
        problems = [*self._problems, *([f"and {count_text(unlisted)} more"] if unlisted else [])]
        if self._count >= row_count:
            message = f"{message}: nothing is left" if self._skips else message
            raise DataError(message, problems=problems, hint=(hint_for_all or "correct these rows") + alternative)
        if not self._skips:
            hint = f"correct these rows, or skip them: --set on_bad_rows=skip{alternative}"
            raise DataError(message, problems=problems, hint=hint)
        self.notes.append(f"{message} and were skipped (on_bad_rows=skip): " + "; ".join(problems))
