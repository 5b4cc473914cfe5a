"""Full checkpoints of a run: atomic, verified, and never without a good one.

    checkpoints/update-00001200/   manifest.json  state.json  model.safetensors  optimizer.safetensors

A checkpoint is written into a directory beside, synced, read back for its manifest, and only then given its name. One
that has its name therefore was whole; whether it still is, the manifest tells at every load.
"""

import errno
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoestring.checkpoint import reading
from shoestring.checkpoint.files import directory_bytes, is_full, remove, sync, write_file, write_text
from shoestring.checkpoint.manifest import MANIFEST, STATE, TRAINED, Damaged, FileEntry, Manifest
from shoestring.checkpoint.names import update_name, update_of
from shoestring.checkpoint.snapshot import Snapshot, snapshot
from shoestring.checkpoint.tensors import pieces
from shoestring.errors import CheckpointError
from shoestring.units import MIB, bytes_text

_REPLACED = re.compile(r"\.replaced-([0-9]{8,18})")
_MODEL = "model.safetensors"
_UNFINISHED = (".writing-*", ".removed-*")


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint that was just written."""

    update: int
    path: Path
    bytes: int
    seconds: float
    """From the call to the checkpoint being there, older ones removed."""
    cpu_seconds: float
    """Of a processor's time, of those that `seconds` had."""
    freed: tuple[Path, ...] = ()
    """What was expendable and had to go to make room."""


@dataclass(frozen=True, kw_only=True)
class Restored:
    """The newest checkpoint that verified, with its state as it was saved."""

    update: int
    path: Path
    state: Mapping[str, Any]
    """By section. A section's tensors are the file itself, mapped into memory anew each time the section is asked for:
    copy them into place and let go of them.
    """


class Store:
    """The full checkpoints in one directory. One process at a time may use it, and one thread of it."""

    def __init__(
        self,
        root: Path,
        *,
        keep: int = 2,
        limit_bytes: int | None = None,
        expendable: Callable[[], Iterable[Path]] = tuple,
        on_damaged: Callable[[Path, str, str], None] | None = None,
    ) -> None:
        """`keep` verified checkpoints stay. `limit_bytes` is what the platform lets the run's directory (the parent
        of `root`) have, where the free space the system reports may be the host's. When there is no room for another
        one, `expendable()` are removed, one after another. `on_damaged(path, file, why)` is told of every checkpoint
        that is passed over.

        Raises CheckpointError where `root` can be neither found nor made.
        """
        self.root = root
        self._keep = keep
        self._limit_bytes = limit_bytes
        self._expendable = expendable
        self._on_damaged = on_damaged
        self._verified: set[int] = set()
        self._damaged: set[int] = set()
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{root} cannot hold checkpoints: {error}") from error
        self._clear_leftovers()

    def updates(self) -> list[int]:
        """The updates that have a checkpoint, verified or not, in order."""
        found = (update_of(path.name) for path in self.root.iterdir())
        return sorted(update for update in found if update is not None)

    def path(self, update: int) -> Path:
        return self.root / update_name(update)

    def newest_verified(self) -> Path | None:
        """The newest checkpoint that was written or read whole by this store."""
        return self.path(max(self._verified)) if self._verified else None

    def save(self, update: int, state: Mapping[str, Any]) -> Saved:
        """Write `state` as the checkpoint of `update`; older ones beyond `keep` are removed afterwards.

        Each value of `state` is a section; the tensors of a section lie in a file of its name, all else in state.json.

        Raises CheckpointError when the disk cannot hold it or writing fails; nothing that was there is touched then.
        """
        return self.write(update, snapshot(state))

    def write(self, update: int, state: Snapshot) -> Saved:
        """As `save`, of a state that was made into sections before, such as a copy that a thread of its own writes."""
        started, cpu_started = time.monotonic(), time.thread_time()
        freed: list[Path] = []
        while True:
            try:
                self._require_space(state.bytes + MIB)
                self._write_whole(update, state)
                break
            except OSError as error:
                self._clear_leftovers()
                if not (is_full(error) and self._free_one(freed)):
                    raise self._failure(update, error) from error
            except BaseException:
                self._clear_leftovers()
                raise
        self._damaged.discard(update)
        self._verified.add(update)
        # The checkpoint is there. What cannot be removed now is removed after the next one.
        with suppress(OSError):
            self._rotate()
        return Saved(
            update=update,
            path=self.path(update),
            bytes=directory_bytes(self.path(update)),
            seconds=time.monotonic() - started,
            cpu_seconds=time.thread_time() - cpu_started,
            freed=tuple(freed),
        )

    def load(self) -> Restored | None:
        """The newest checkpoint that verifies; None when there is none at all.

        Raises CheckpointError when there are checkpoints and every one is damaged.
        """
        reasons = []
        for update in reversed(self.updates()):
            path = self.path(update)
            try:
                state = reading.sections(path, update)
            except Damaged as damage:
                self._damaged.add(update)
                reasons.append(f"{path.name}/{damage.file}: {damage.why}")
                if self._on_damaged:
                    self._on_damaged(path, damage.file, damage.why)
                continue
            self._verified.add(update)
            return Restored(update=update, path=path, state=state)
        if reasons:
            raise CheckpointError(
                f"no checkpoint in {self.root} is whole",
                problems=reasons,
                hint="copy the run again from where it came, or start a new one in another directory",
            )
        return None

    def _clear_leftovers(self) -> None:
        """Put right what a kill or an error in the midst of a save has left, as far as the disk lets us."""
        with suppress(OSError):
            self._put_right()

    def _put_right(self) -> None:
        for pattern in _UNFINISHED:
            for unfinished in self.root.glob(pattern):
                remove(unfinished)
        for replaced in self.root.glob(".replaced-*"):
            match = _REPLACED.fullmatch(replaced.name)
            if match and not self.path(int(match[1])).exists():
                replaced.rename(self.path(int(match[1])))
            else:
                remove(replaced)

    def _require_space(self, need: int) -> None:
        """Raises OSError, as a disk that is full does, when `need` bytes are more than there are."""
        free = shutil.disk_usage(self.root).free
        what = f"{self.root} has {bytes_text(free)} free"
        if self._limit_bytes is not None:
            left = self._limit_bytes - directory_bytes(self.root.parent)
            if left < free:
                free = left
                what = f"the run may take {bytes_text(self._limit_bytes)} and has {bytes_text(max(0, left))} left"
        if need > free:
            raise OSError(errno.ENOSPC, f"a checkpoint needs {bytes_text(need)}; {what}")

    def _write_whole(self, update: int, state: Snapshot) -> None:
        beside = self.root / f".writing-{update:08d}-{os.getpid()}"
        beside.mkdir()
        _write(beside, update, state)
        final, replaced = self.path(update), self.root / f".replaced-{update:08d}"
        if final.exists():
            final.rename(replaced)
        beside.rename(final)
        sync(self.root)
        remove(replaced)

    def _free_one(self, freed: list[Path]) -> bool:
        """Remove what is expendable first, and add it to `freed`; False where nothing is."""
        for path in filter(Path.exists, self._expendable()):
            remove(path)
            if not path.exists():
                freed.append(path)
                return True
        return False

    def _failure(self, update: int, error: OSError) -> CheckpointError:
        good = self.newest_verified()
        return CheckpointError(
            f"the checkpoint of update {update} could not be written to {self.root}: {error}",
            hint=f"the last good one is {good}; free space, then train again: the run continues from there"
            if good
            else "free space there, then train again",
        )

    def _rotate(self) -> None:
        """Keep the newest ones, and always the newest that verified; damaged ones go first."""
        whole = [update for update in self.updates() if update not in self._damaged]
        keep = {*whole[-self._keep :], max(self._verified)}
        for update in self.updates():
            if update not in keep:
                self._remove(update)

    def _remove(self, update: int) -> None:
        """Remove a checkpoint, all of it at once in the eyes of who looks; one that cannot be removed stays."""
        removed = self.root / f".removed-{update:08d}"
        with suppress(OSError):
            self.path(update).rename(removed)
            remove(removed)


def _write(folder: Path, update: int, state: Snapshot) -> None:
    digests = {}
    for name, section in state.sections.items():
        if section.tensors:
            file = f"{name}.safetensors"
            digests[file] = write_file(folder / file, pieces(section.tensors, {"format": "pt"}))
    skeletons = {name: section.skeleton for name, section in state.sections.items()}
    digests[STATE] = write_text(folder / STATE, json.dumps(skeletons, allow_nan=False))
    files = {name: FileEntry.written(folder / name, digest) for name, digest in digests.items()}
    weights = {TRAINED: (_MODEL,)} if _MODEL in files else {}
    try:
        manifest = Manifest(kind="full", update=update, files=files, weights=weights)
    except ValueError as error:
        raise CheckpointError(
            f"the checkpoint of update {update} could not be read back: {error}",
            hint="sections of a state have names of small letters and underscores",
        ) from error
    write_text(folder / MANIFEST, manifest.text())
    sync(folder)
