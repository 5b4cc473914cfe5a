"""Names of saved updates, such as `update-00001200`."""

import re
from pathlib import Path

_UPDATE = re.compile(r"update-([0-9]{8,18})")
UNFINISHED = r"\.writing-[0-9]{8,18}-[0-9]+|\.(?:removed|replaced)-[0-9]{8,18}"
"""A regular expression for the names under which killed processes leave saved updates."""
SAVED = re.compile(rf"{_UPDATE.pattern}|{UNFINISHED}")
"""The names of folders with saved updates, and of what is left of them."""


def update_name(update: int) -> str:
    """Return the name under which the state after `update` is saved."""
    return f"update-{update:08d}"


def removed_path(folder: Path) -> Path:
    """Return the path to which a saved update is renamed before its files are removed."""
    return folder.with_name(f".removed-{folder.name.removeprefix('update-')}")


def update_of(name: str) -> int | None:
    """Return the update that `name` stands for; None for any other name."""
    match = _UPDATE.fullmatch(name)
    update = int(match[1]) if match else None
    return update if update is not None and update_name(update) == name else None
