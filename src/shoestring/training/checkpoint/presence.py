"""Detects that a directory which the run needs was deleted, moved, replaced or unmounted while the run was training."""

import os
import weakref
from pathlib import Path

from shoestring.base.errors import CheckpointError
from shoestring.training.checkpoint.files import close_quietly


class GoneError(CheckpointError):
    """A directory or a checkpoint that the run needs does not exist any more. Saving again later cannot succeed."""


def gone_error(path: Path, older: Path | None = None) -> GoneError:
    """Return the error for `path`, which is gone; `older` is the checkpoint that the run can continue from."""
    return GoneError(
        f"{path} is gone: it was deleted, moved or replaced while the run was training",
        hint=f"train again: the run continues from {older}"
        if older
        else "put it back and train again, or start a new run with another --run",
    )


class Presence:
    """Knows the directory that a path leads to.

    The directory stays open: its number then belongs to no other directory, also on filesystems that number directories
    anew when they are not in use.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.close = weakref.finalize(self, close_quietly, self._descriptor)

    def is_lost(self) -> bool:
        """Return whether the path leads to the directory no more; False if the system cannot tell at present."""
        try:
            current = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False
        try:
            return not os.path.samestat(current, os.fstat(self._descriptor))
        except OSError:  # a network disk that was connected again
            return False
