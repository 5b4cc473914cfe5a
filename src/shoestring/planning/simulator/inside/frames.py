"""Lines of Python: whose they are, and how they are told."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

_OWN_FOLDER = f"{Path(__file__).absolute().parent}{os.sep}"
_STANDARD_LIBRARY = tuple(
    f"{folder}{os.sep}"
    for location in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), Path(os.__file__).parent)
    for folder in (Path(location), Path(location).resolve())
)
_own: dict[str, bool] = {}


def is_own(file: str) -> bool:
    """Whether the file is the person's own code: neither of an installed package nor of Python."""
    own = _own.get(file)
    if own is None:
        own = _own[file] = _is_own(file)
    return own


def _is_own(file: str) -> bool:
    if not file or file.startswith(_OWN_FOLDER):
        return False
    if file.startswith("<"):  # a cell or a line that was typed, and not what a library compiled
        return file.startswith(("<ipython", "<stdin", "<string"))
    path = str(Path(file).absolute())
    if f"{os.sep}site-packages{os.sep}" in path or f"{os.sep}dist-packages{os.sep}" in path:
        return False
    return not path.startswith(_STANDARD_LIBRARY)


def is_observer(file: str) -> bool:
    """Whether the file belongs to this package."""
    return file.startswith(_OWN_FOLDER)


def walk(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and those that called it, without those of this package."""
    while frame is not None:
        if not is_observer(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def fields(frame: FrameType) -> dict[str, Any]:
    """A frame as it stands in an event."""
    return {"file": frame.f_code.co_filename, "line": frame.f_lineno, "function": frame.f_code.co_name}


def stack(frame: FrameType | None, limit: int = 100) -> list[dict[str, Any]]:
    """The frames of a thread, innermost first."""
    frames = [fields(caller) for caller in walk(frame)]
    return frames if len(frames) <= limit else frames[: limit // 2] + frames[-limit // 2 :]


def has_own(frames: Iterable[dict[str, Any]]) -> bool:
    """Whether one of the frames is of the person's own code."""
    return any(is_own(frame["file"]) for frame in frames)


def nearest_own() -> dict[str, Any] | None:
    """The innermost line of the person's own code that is being run by this thread."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_own(frame.f_code.co_filename):
            return fields(frame)
        frame = frame.f_back
    return None
