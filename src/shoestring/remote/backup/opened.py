"""The files of a run for one copy, held open: rotation and replacement cannot take them away while they are copied.

Open files need no space of their own in the run's directory, and a killed process leaves nothing of them.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from shoestring.base.errors import CheckpointError, UsageError
from shoestring.base.reading import open_file
from shoestring.training.checkpoint.files import close_quietly
from shoestring.training.checkpoint.manifest import (
    MANIFEST,
    DamagedFileError,
    FileEntry,
    Manifest,
    load_manifest,
    read_manifest,
)
from shoestring.training.checkpoint.names import update_of
from shoestring.training.run_directory.contents import BY_NAME, ENTRIES
from shoestring.training.run_directory.directory import RunDirectory

_COPIED = tuple(entry for entry in ENTRIES if entry.backup == "all")
"""What is copied besides the newest checkpoint."""
_BLOCK_BYTES = 4 << 20
_ATTEMPTS = 5


class UnsettledError(Exception):
    """The run's files have changed while they were opened, or do not match each other: a later copy takes them."""


@dataclass(frozen=True, kw_only=True)
class OpenedFile:
    """One file of a copy: its first `size` bytes, which do not change any more."""

    path: str
    """The path in the run's directory."""
    descriptor: int
    size: int

    def blocks(self) -> Iterator[bytes]:
        """Yield the content. Raises OSError, and UnsettledError if the file has become shorter."""
        offset = 0
        while offset < self.size:
            block = os.pread(self.descriptor, min(_BLOCK_BYTES, self.size - offset), offset)
            if not block:
                raise UnsettledError(f"{self.path} has become shorter")
            offset += len(block)
            yield block

    def digest(self, on_block: Callable[[int], object]) -> str:
        """Return the SHA-256 of the content; `on_block` receives the size of each block."""
        digest = hashlib.sha256()
        for block in self.blocks():
            digest.update(block)
            on_block(len(block))
        return digest.hexdigest()

    def is_unlinked(self) -> bool:
        """Return whether only this process still holds the file, and with it its disk space."""
        return os.fstat(self.descriptor).st_nlink == 0


@dataclass(frozen=True, kw_only=True)
class OpenedRun:
    """The files of a run at one time."""

    update: int
    """That of the checkpoint."""
    files: tuple[OpenedFile, ...]
    manifests: dict[str, Manifest]
    """The manifests by folder; every file that they list has to match."""

    def expected(self, path: str) -> FileEntry | None:
        """Return the entry of a file in the manifest beside it; None if it has none."""
        folder, _, name = path.rpartition("/")
        manifest = self.manifests.get(folder)
        return manifest.files.get(name) if manifest else None


def newest_checkpoint(run: RunDirectory) -> int | None:
    """Return the update of the newest checkpoint; None if there is none.

    A checkpoint gets its name when it has been written and verified.
    """
    try:
        updates = [update_of(path.name) for path in run.checkpoints.iterdir()]
    except OSError:
        return None
    return max((update for update in updates if update is not None), default=None)


def open_run(run: RunDirectory, stack: ExitStack) -> OpenedRun:
    """Open the newest checkpoint and all other files of a copy; `stack` closes them.

    Raises UnsettledError if they change all the time or a checkpoint is damaged, and OSError.
    """
    problem = "it has no checkpoint"
    for _ in range(_ATTEMPTS):
        attempt = ExitStack()
        try:
            # The status is read before and after: a finished run is copied with its last checkpoint and weights.
            before = _status(run)
            opened = _open(run, attempt)
            if _status(run) == before:
                stack.push(attempt)
                return opened
            problem = "its status has changed"
        except (FileNotFoundError, DamagedFileError, ValueError) as error:
            problem = str(error)
        except CheckpointError as error:
            problem = error.message
        except BaseException:
            attempt.close()
            raise
        attempt.close()
    raise UnsettledError(f"the files of {run.path} cannot be copied now: {problem}")


def _open(run: RunDirectory, stack: ExitStack) -> OpenedRun:
    update = newest_checkpoint(run)
    if update is None:
        raise FileNotFoundError("it has no checkpoint")
    manifests: dict[str, Manifest] = {}
    checkpoint = next(path for path in run.checkpoints.iterdir() if update_of(path.name) == update)
    folder = checkpoint.relative_to(run.path).as_posix()
    manifests[folder] = read_manifest(checkpoint)
    names = [MANIFEST, *sorted(manifests[folder].files)]
    files = [_open_file(run.path, f"{folder}/{name}", stack) for name in names]
    with_manifests = [entry.name for entry in _COPIED if entry.has_manifests]
    for path in _paths_below(run.path, with_manifests):
        if path.endswith(f"/{MANIFEST}"):
            manifests[path.rpartition("/")[0]] = load_manifest((run.path / path).parent)
    for path in _paths_below(run.path, [entry.name for entry in _COPIED if entry.is_folder]):
        opened = _open_file(run.path, path, stack)
        entry = OpenedRun(update=update, files=(), manifests=manifests).expected(path)
        if entry and entry.bytes != opened.size:
            raise DamagedFileError(path, "it does not match its manifest")
        files.append(opened)
    names = [entry.name for entry in _COPIED if not entry.is_folder]
    files += [_open_file(run.path, name, stack) for name in names if (run.path / name).exists()]
    return OpenedRun(update=update, files=tuple(files), manifests=manifests)


def _status(run: RunDirectory) -> str:
    try:
        state = run.state()
    except UsageError:
        return "damaged"
    return state.status if state else ""


def _paths_below(run: Path, folders: Iterable[str]) -> Iterator[str]:
    """Yield the paths of regular files below these folders, without links and without hidden files."""
    for folder in folders:
        for parent, folders_below, names in os.walk(run / folder):
            folders_below[:] = sorted(name for name in folders_below if not name.startswith("."))
            for name in sorted(names):
                path = Path(parent) / name
                if not name.startswith(".") and path.is_file() and not path.is_symlink():
                    yield path.relative_to(run).as_posix()


def _open_file(run: Path, path: str, stack: ExitStack) -> OpenedFile:
    descriptor = open_file(run / path, follow=False)
    stack.callback(close_quietly, descriptor)
    size = os.fstat(descriptor).st_size
    if path in BY_NAME and BY_NAME[path].kind == "log":
        size = _complete_lines(descriptor, size)
    return OpenedFile(path=path, descriptor=descriptor, size=size)


def _complete_lines(descriptor: int, size: int) -> int:
    """Return the size up to the end of the last complete line, which does not change any more."""
    while size:
        start = max(0, size - _BLOCK_BYTES)
        end = os.pread(descriptor, size - start, start).rfind(b"\n")
        if end >= 0:
            return start + end + 1
        size = start
    return 0
