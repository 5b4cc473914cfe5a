"""A rehearsal without private details, so that it can be shown to others.

Paths begin at the current folder (`./train.py`), the home (`~/...`), the folder of installed packages
(`site-packages/...`) or Python's own (`python3.12/...`). Access tokens in the command are cut.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from shoestring.runs.rehearse.rehearsal import Frame, Rehearsal

_PACKAGES = re.compile(r"[^\s'\"=:(]*/(?:site|dist)-packages(?=/)")
_PYTHON = re.compile(r"[^\s'\"=:(]*/(python3\.\d+)(?=/)")
_TOKEN = re.compile(r"\b(hf_|KGAT_|gh[opsur]_|github_pat_|glpat-|sk-|xox[a-z]-|AKIA|ASIA|eyJ)[\w.-]{16,}")
"""Access tokens by the beginnings that Hugging Face, Kaggle, GitHub, GitLab, OpenAI, Slack and Amazon give them."""
_NAMES = r"(?:token|passw(?:or)?d|secret|api[_-]?key)"
_SECRET = re.compile(rf"(--?[\w-]*{_NAMES}(?:=|\s+)|\w*{_NAMES}['\"]?\s*[=:]\s*)(['\"]?)[\w./+=-]{{8,}}", re.IGNORECASE)
"""What follows the name of an option or a variable for a secret."""
_PASSWORD = re.compile(r"(?<=://)[^/\s@]+(?=@)")
"""The user and the password of an address."""


def shared(rehearsal: Rehearsal, *, home: Path | None = None, current: Path | None = None) -> Rehearsal:
    """Return the rehearsal without paths of this machine; `home` and `current` are by default those of this process.

    Applied to its own result it changes nothing.
    """
    shorten = _Shortening(
        packages=rehearsal.private_folders, home=home or Path.home(), current=current or Path.cwd()
    ).text

    def frame(original: Frame) -> Frame:
        return replace(original, file=shorten(original.file))

    error = rehearsal.out_of_memory
    if error:
        error = replace(
            error,
            stack=tuple(map(frame, error.stack)),
            own_frame=frame(error.own_frame) if error.own_frame else None,
        )
    return replace(
        rehearsal,
        script=shorten(rehearsal.script),
        command=shorten(rehearsal.command),
        error=shorten(rehearsal.error),
        out_of_memory=error,
        holders=tuple(replace(holder, frame=frame(holder.frame)) for holder in rehearsal.holders),
        assumed=tuple(map(shorten, rehearsal.assumed)),
        proposals=tuple(map(shorten, rehearsal.proposals)),
        notes=tuple(map(shorten, rehearsal.notes)),
        private_folders=(),
    )


def is_library(frame: Frame) -> bool:
    """Return whether a frame is of an installed package, of Python itself or of no file, not of the person's code."""
    path = frame.file
    return bool(
        path.startswith(("<frozen ", "site-packages/", "dist-packages/", "torch/"))
        or re.match(r"python3\.\d+/", path)
        or re.search(r"/(site|dist)-packages/|/lib/python3\.\d+/", path)
    )


class _Shortening:
    """Replaces the beginnings of paths in a text."""

    def __init__(self, *, packages: tuple[str, ...], home: Path, current: Path) -> None:
        beginnings = {str(home.resolve()): "~", str(current.resolve()): ".", str(home): "~", str(current): "."}
        beginnings |= {folder: "" for folder in packages if not re.search(r"/(site|dist)-packages$", folder)}
        # The longest first: the current folder is often below the home, and an environment below both.
        longest = sorted(beginnings, key=len, reverse=True)
        self._replacements = [
            (re.compile(rf"(?<![\w/.~-]){re.escape(folder)}(/|(?![\w.-]))"), beginnings[folder])
            for folder in longest
            if len(Path(folder).parts) > 1
        ]

    def text(self, text: str) -> str:
        """Return a text with shortened paths and without tokens."""
        for folder, beginning in self._replacements:
            if not beginning:  # a folder of packages or a temporary one, which may be below an environment
                text = folder.sub(lambda match: "" if match[1] else "...", text)
        text = _PYTHON.sub(r"\1", _PACKAGES.sub("site-packages", text))
        for folder, beginning in self._replacements:
            if beginning:
                text = folder.sub(rf"{beginning}\1", text)
        return _SECRET.sub(r"\1\2...", _PASSWORD.sub("...", _TOKEN.sub(r"\1...", text)))
