"""The option `columns`: which columns of the files stand for those of a form."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeAlias

from shoestring.base.errors import UsageError, nearest

Columns: TypeAlias = Mapping[str, str]
"""The names in the files by our names."""

NAMES = (
    "messages", "conversations", "tools", "system", "history", "prompt", "completion", "instruction", "input", "output",
    "text", "chosen", "rejected", "weight", "label",
)  # fmt: skip
"""Our names of the columns that can be given another name."""


def parse_columns(text: str | None) -> Columns:
    """Parse the option `columns`: `messages:chat` or `prompt:question,completion:answer`.

    Raises UsageError with all problems.
    """
    columns: dict[str, str] = {}
    problems = []
    for pair in text.split(",") if text is not None else ():
        ours, colon, theirs = (part.strip() for part in pair.partition(":"))
        if not (ours and colon and theirs):
            problems.append(f"{pair.strip()!r} is not ours:theirs")
        elif ours not in NAMES:
            problems.append(f"{ours!r} is not one of our columns; {nearest(ours, NAMES)}")
        elif ours in columns:
            problems.append(f"{ours} is given twice")
        elif theirs in columns.values():
            problems.append(f"your column {theirs!r} is given twice")
        else:
            columns[ours] = theirs
    if problems:
        raise UsageError(
            f"columns={text} cannot be used",
            problems=problems,
            hint=f"write ours:theirs, as in prompt:question,completion:answer; ours is one of {', '.join(NAMES)}",
        )
    return columns


def require_columns(columns: Columns, present: Collection[str]) -> None:
    """Raise UsageError if none of the rows, which have the columns `present`, has one that `columns` names."""
    names = sorted(present)
    problems = [
        f"{ours}:{theirs}: no row has a column {theirs!r}; {nearest(theirs, names)}"
        for ours, theirs in columns.items()
        if theirs not in present
    ]
    if problems:
        pairs = ",".join(f"{ours}:{theirs}" for ours, theirs in columns.items())
        raise UsageError(
            f"columns={pairs} does not fit the data",
            problems=problems,
            hint=f"the columns of the data are {', '.join(names[:40]) or 'none'}",
        )
