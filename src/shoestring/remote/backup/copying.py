"""One copy of a run: what the store lacks is sent, then the commit, and only then are older copies removed."""

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from shoestring.base.errors import CheckpointError, UsageError
from shoestring.base.units import MIB, bytes_text
from shoestring.remote.backup.commits import (
    COMMITS,
    MAX_COMMIT_BYTES,
    OBJECTS,
    Commit,
    CommitName,
    names_of,
    parse_commit,
)
from shoestring.remote.backup.opened import OpenedFile, OpenedRun, UnsettledError, open_run
from shoestring.remote.backup.stores import Store
from shoestring.training.checkpoint.manifest import FileEntry
from shoestring.training.run_directory.directory import RunDirectory

CHECKPOINTS = 2
"""The number of newest checkpoints whose copies stay."""


@dataclass(frozen=True, kw_only=True)
class Copied:
    """A copy that was just committed."""

    update: int
    bytes: int
    """The size of all its files."""
    sent_bytes: int
    """The size of the files that were not there yet."""
    seconds: float


class Copier:
    """Copies one run to one store. Only one machine may do so at a time; another one is noticed by its commits."""

    def __init__(self, run: RunDirectory, store: Store, run_id: str, *, on_block: Callable[[int], object]) -> None:
        """`on_block` receives the size of each block that was read, as a sign of progress; it may raise."""
        self._run, self._store, self._run_id, self._on_block = run, store, run_id, on_block
        self._writer = os.urandom(4).hex()
        self._sound: set[str] = set()
        """The digests of the objects that this process has written or verified."""
        self._last: CommitName | None = None
        self._last_files: dict[str, FileEntry] = {}

    def require_own(self) -> None:
        """Raise UsageError if the store has copies of another run, or if another machine copies this run."""
        for name in names_of(self._store.sizes(COMMITS)):
            if self._last and name.number >= self._last.number and name.writer != self._writer:
                raise UsageError(
                    f"another machine copies this run to the same place: it has written {name}",
                    hint="stop one of the two; the other one continues from the newest copy with --from "
                    "(in a script: from_url)",
                )
            try:
                commit = parse_commit(self._read(name.path), name)
            except ValueError:
                continue
            if commit.run != self._run_id:
                raise UsageError(
                    f"the backup belongs to another run: {name} is of run {commit.run[:8]}, not {self._run_id[:8]}",
                    hint="give each run a place of its own, or continue that run in another directory: "
                    "--from (in a script: from_url) with the same URL, and another --run",
                )
            return

    def copy(self) -> Copied | None:
        """Copy the run as it is now; None if its newest copy has the same files.

        Raises UsageError as `require_own` does, UnsettledError if the files change, OSError and what the store raises.
        """
        started = time.monotonic()
        self.require_own()
        with ExitStack() as stack:
            opened = open_run(self._run, stack)
            entries = self._entries(opened)
            if entries == self._last_files:
                return None
            sent = self._send(opened, entries)
        commit = Commit(run=self._run_id, update=opened.update, files=entries)
        self._commit(commit)
        return Copied(update=commit.update, bytes=commit.bytes, sent_bytes=sent, seconds=time.monotonic() - started)

    def _entries(self, opened: OpenedRun) -> dict[str, FileEntry]:
        """Return the entries of the files. Raises UnsettledError if one does not match the manifest beside it."""
        entries = {}
        for file in opened.files:
            entry = FileEntry(bytes=file.size, sha256=file.digest(self._on_block))
            expected = opened.expected(file.path)
            if expected and (expected.bytes, expected.sha256) != (entry.bytes, entry.sha256):
                raise UnsettledError(f"{file.path} does not match its manifest")
            entries[file.path] = entry
        return entries

    def _send(self, opened: OpenedRun, entries: dict[str, FileEntry]) -> int:
        """Send the files that the store lacks. Returns their size."""
        present, sent = self._store.sizes(OBJECTS), 0
        for file in opened.files:
            entry = entries[file.path]
            if entry.sha256 in self._sound and present.get(entry.sha256) == entry.bytes:
                continue
            if present.get(entry.sha256) != entry.bytes or not self._is_sound(entry):
                self._store.write(f"{OBJECTS}/{entry.sha256}", self._unchanged(file, entry, opened))
                present[entry.sha256] = entry.bytes
                sent += entry.bytes
            self._sound.add(entry.sha256)
        return sent

    def _unchanged(self, file: OpenedFile, entry: FileEntry, opened: OpenedRun) -> Iterator[bytes]:
        """Yield the content of a file as long as it is the one that was verified."""
        digest = hashlib.sha256()
        for block in file.blocks():
            digest.update(block)
            self._on_block(len(block))
            self._require_space(opened)
            yield block
        if digest.hexdigest() != entry.sha256:
            raise UnsettledError(f"{file.path} has changed while it was copied")

    def _require_space(self, opened: OpenedRun) -> None:
        """Raise UnsettledError if a removed checkpoint is held while the disk has no space for the next one."""
        if any(file.is_unlinked() for file in opened.files):
            free, needed = shutil.disk_usage(self._run.path).free, 2 * sum(file.size for file in opened.files) + MIB
            if free < needed:
                raise UnsettledError(
                    f"the checkpoint was removed before it was copied, and its disk has {bytes_text(free)} free"
                )

    def _is_sound(self, entry: FileEntry) -> bool:
        """Return whether an object of an earlier session has the content of its name."""
        return (
            _digest(self._with_progress(self._store.blocks(f"{OBJECTS}/{entry.sha256}", entry.bytes))) == entry.sha256
        )

    def _commit(self, commit: Commit) -> None:
        """Write the commit, verify that it is there with all its objects, and remove older copies."""
        earlier = names_of(self._store.sizes(COMMITS))
        name = CommitName(1 + (earlier[0].number if earlier else 0), commit.update, self._writer)
        self._store.write(name.path, [commit.text().encode()])
        sizes = self._store.sizes(OBJECTS)
        if missing := [path for path, entry in commit.files.items() if sizes.get(entry.sha256) != entry.bytes]:
            self._sound -= {commit.files[path].sha256 for path in missing}
            raise CheckpointError(f"{len(missing)} files are not in the backup after they were sent: {missing[0]}")
        if parse_commit(self._read(name.path), name).files != commit.files:
            raise CheckpointError(f"{name} is not what was written")
        self._last, self._last_files = name, dict(commit.files)
        self._remove_older(sizes)

    def _remove_older(self, sizes: Iterable[str]) -> None:
        """Remove all commits but the newest one of each of the newest checkpoints, then the objects that none needs."""
        names = names_of(self._store.sizes(COMMITS))
        newest_by_update: dict[int, CommitName] = {}
        needed: set[str] = set()
        for name in names:
            if len(newest_by_update) == CHECKPOINTS or name.update in newest_by_update:
                continue
            try:
                commit = parse_commit(self._read(name.path), name)
            except ValueError:
                if name.writer != self._writer:
                    continue  # half a copy of a machine that was lost
                raise
            newest_by_update[name.update] = name
            needed |= {entry.sha256 for entry in commit.files.values()}
        for name in names:
            if name not in newest_by_update.values():
                self._store.remove(name.path)
        for digest in set(sizes) - needed:
            self._store.remove(f"{OBJECTS}/{digest}")
        self._sound &= needed

    def _read(self, name: str) -> bytes:
        return b"".join(self._with_progress(self._store.blocks(name, MAX_COMMIT_BYTES)))

    def _with_progress(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        for block in blocks:
            self._on_block(len(block))
            yield block


def _digest(blocks: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()
