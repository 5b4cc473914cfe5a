"""Rows that cannot be used: all of them at once with file and line, refused or skipped and counted, never replaced."""

from pathlib import Path
from typing import Literal, TypeAlias

from shoestring.errors import DataError
from shoestring.units import count_text

OnBadRows: TypeAlias = Literal["refuse", "skip"]
"""What an option `on_bad_rows` takes."""

SHOWN = 20


class Rows:
    """The bad ones among the rows of some files. Whoever reads them::

    rows = Rows(on_bad_rows)
    for number, line in enumerate(file, start=1):
        if not is_good(line):
            rows.bad(path, number, "has no label")
    rows.settle(number)
    notes += rows.notes
    """

    def __init__(self, on_bad_rows: OnBadRows) -> None:
        self._skips = on_bad_rows == "skip"
        self._shown: list[str] = []
        self._count = 0
        self.notes: list[str] = []
        """What was skipped, once it is settled."""

    def bad(self, path: Path, line: int | None, why: str) -> None:
        """A row that cannot be used, by its line (from 1), or a whole file without one."""
        self._count += 1
        if len(self._shown) < SHOWN:
            self._shown.append(f"{path}, line {line}: {why}" if line is not None else f"{path}: {why}")

    def settle(self, read: int) -> None:
        """All `read` rows were seen, bad ones among them.

        Raises DataError with the bad ones, unless they are to be skipped and something is left.
        """
        if not self._count:
            return
        said = f"{count_text(self._count)} of {count_text(read)} rows cannot be used"
        more = self._count - len(self._shown)
        problems = [*self._shown, *([f"and {count_text(more)} more"] if more else [])]
        if not self._skips:
            raise DataError(said, problems=problems, hint="mend them, or leave them out: --set on_bad_rows=skip")
        if self._count >= read:
            raise DataError(f"{said}: nothing is left", problems=problems, hint="mend them")
        self.notes.append(f"{said} and were skipped (on_bad_rows=skip): " + "; ".join(problems))
