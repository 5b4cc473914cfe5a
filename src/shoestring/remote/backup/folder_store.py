"""Copies in a folder, such as another disk, a network disk or a mounted Drive."""

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from shoestring.base.processes import is_running
from shoestring.base.reading import read_blocks
from shoestring.training.checkpoint.files import remove_file, replace, sync, write_file

_UNFINISHED = re.compile(r"\.(?:[0-9a-f]{64}|[0-9]+-update-[0-9]+-[0-9a-f]+\.json)\.[0-9]+")
"""The names of the files that a process is writing: that of an object or a commit, and the id of the process."""


class FolderStore:
    """Files below a folder, each written beside, synced, read back and renamed."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the size of each regular file in `folder`, by name; none if there is no folder. Raises OSError."""
        path = self._path(folder)
        sizes = {}
        with suppress(FileNotFoundError):
            for entry in os.scandir(path):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and not entry.name.startswith("."):
                    sizes[entry.name] = status.st_size
        return sizes

    def blocks(self, name: str, max_bytes: int) -> Iterator[bytes]:
        """Yield the content of a file. Raises OSError, and ValueError if it is no regular file or larger."""
        return read_blocks(self._path(name), follow=False, max_bytes=max_bytes)

    def write(self, name: str, blocks: Iterable[bytes]) -> None:
        """Write a file, which is complete or absent. Raises OSError, and whatever `blocks` raises."""
        path = self._path(name)
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            sync(path.parent.parent)
        self._remove_unfinished(path.parent)
        replace(path, lambda temporary: write_file(temporary, blocks))

    def remove(self, name: str) -> None:
        """Remove a file; errors are ignored, and the file is removed after a later copy."""
        remove_file(self._path(name))

    def _remove_unfinished(self, folder: Path) -> None:
        """Remove what killed processes of this machine have left: their names end with the process id."""
        for path in folder.glob(".*"):
            pid = path.name.rpartition(".")[2]
            if _UNFINISHED.fullmatch(path.name) and not is_running(int(pid)):
                remove_file(path)

    def close(self) -> None:
        """Nothing is held."""

    def _path(self, name: str) -> Path:
        path = self._root / name
        if path.parent.is_symlink():
            raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed", str(path.parent))
        return path
