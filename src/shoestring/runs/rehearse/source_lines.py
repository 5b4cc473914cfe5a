"""The source of the lines that a rehearsal names, for the people who read the answer beside their code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shoestring.base.reading import read_bytes
from shoestring.base.units import MIB
from shoestring.runs.rehearse.private import is_library
from shoestring.runs.rehearse.rehearsal import Frame, Rehearsal

_MOST_CHARACTERS = 160
_MOST_BYTES = 4 * MIB


def with_source_lines(rehearsal: Rehearsal) -> Rehearsal:
    """Return the rehearsal with the text of each line of the person's own Python files, as far as they can be read."""
    error = rehearsal.out_of_memory
    if error:
        error = replace(
            error,
            stack=tuple(map(_with_text, error.stack)),
            own_frame=_with_text(error.own_frame) if error.own_frame else None,
        )
    holders = tuple(replace(holder, frame=_with_text(holder.frame)) for holder in rehearsal.holders)
    return replace(rehearsal, out_of_memory=error, holders=holders)


def _with_text(frame: Frame) -> Frame:
    # The script's processes have written the paths, so nothing but Python files is read.
    if frame.text or is_library(frame) or not frame.file.endswith(".py"):
        return frame
    try:
        content = read_bytes(Path(frame.file).expanduser(), follow=True, max_bytes=_MOST_BYTES)
    except (OSError, ValueError):
        return frame
    lines = content.decode(errors="replace").splitlines()
    return replace(frame, text="".join(lines[frame.line - 1 : frame.line]).strip()[:_MOST_CHARACTERS])
