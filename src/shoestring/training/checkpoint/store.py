"""Full checkpoints of a run: written atomically and verified; at least one verified checkpoint is always retained.

    checkpoints/update-00001200/   manifest.json  state.json  model.safetensors  optimizer.safetensors

A checkpoint is written into a temporary directory, synced, read back for its manifest, and only then renamed to its
final name. A checkpoint with its final name was therefore complete; each load verifies it against its manifest.
"""

import errno
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoestring.base.errors import CheckpointError
from shoestring.base.system_errors import explaining, reason, remedy
from shoestring.base.units import MIB, bytes_text
from shoestring.training.checkpoint.files import (
    directory_bytes,
    is_disk_full,
    remove_own,
    remove_own_renamed,
    sync,
)
from shoestring.training.checkpoint.identity import RunIdentity
from shoestring.training.checkpoint.manifest import (
    DamagedFileError,
    FileEntry,
    load_manifest,
)
from shoestring.training.checkpoint.names import SAVED, removed_path, update_name, update_of
from shoestring.training.checkpoint.presence import Presence, gone_error
from shoestring.training.checkpoint.sections import read_sections
from shoestring.training.checkpoint.snapshot import Snapshot, snapshot
from shoestring.training.checkpoint.writing import write_set, write_tensors

_REPLACED = re.compile(r"\.replaced-([0-9]{8,18})")
_UNFINISHED = re.compile(r"\.writing-[0-9]{8,18}-[0-9]+|\.removed-[0-9]{8,18}")


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint that was just written."""

    update: int
    path: Path
    bytes: int
    seconds: float
    """The wall-clock time of the save, including the removal of older checkpoints."""
    cpu_seconds: float
    """The CPU time of the thread during the save."""
    freed: tuple[Path, ...] = ()
    """Expendable paths that were removed to free disk space."""


@dataclass(frozen=True, kw_only=True)
class Restored:
    """The newest checkpoint that passed verification, with its state."""

    update: int
    path: Path
    state: Mapping[str, Any]
    """The state by section. Each access to a section maps its tensors anew from the file: copy them to their
    destination, then drop them.
    """


class Store:
    """The full checkpoints in one directory. Only one process, and one thread in it, may use a store at a time."""

    def __init__(
        self,
        root: str | Path,
        *,
        keep: int = 2,
        limit_bytes: int | None = None,
        expendable: Callable[[], Iterable[Path]] = tuple,
        on_damaged: Callable[[Path, str, str], None] | None = None,
        is_writer: bool = True,
        run: RunIdentity | None = None,
    ) -> None:
        """Open the store in `root`, creating the directory if needed.

        The newest `keep` verified checkpoints are kept, and those that were written to be retained. `limit_bytes` is
        the platform's limit on the size of the run's directory (the parent of `root`); the free space that the system
        reports may be that of the host. If there is no space for another checkpoint, the paths of `expendable()` are
        removed one after another, then the retained checkpoints, the oldest first, that are not among the newest.
        `on_damaged(path, file, reason)` is called for every damaged checkpoint that a load skips. A store that is no
        writer leaves an unfinished save alone, which may be that of another process. Checkpoints name the `run`.

        Raises CheckpointError if `root` cannot be created.
        """
        self.root = root = Path(root)
        self._keep = keep
        self._limit_bytes = limit_bytes
        self._expendable = expendable
        self._on_damaged = on_damaged
        self._run = run
        self._verified: set[int] = set()
        self._damaged: set[int] = set()
        self._retained: set[int] = set()
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._directories = Presence(root.parent), Presence(root)
        except OSError as error:
            raise CheckpointError(
                f"{root} cannot be used for checkpoints: {reason(error)}", hint=remedy(error)
            ) from error
        if is_writer:
            self._recover()
            self._retained = {update for update in self.updates() if _is_retained(self.path(update))}

    def updates(self) -> list[int]:
        """Return the updates that have a checkpoint, verified or not, in order."""
        updates = (update_of(path.name) for path in self.root.iterdir())
        return sorted(update for update in updates if update is not None)

    def path(self, update: int) -> Path:
        return self.root / update_name(update)

    def newest_verified(self) -> Path | None:
        """Return the newest checkpoint that this store has written or verified."""
        verified = tuple(self._verified)  # a copy: a thread may be saving
        return self.path(max(verified)) if verified else None

    def require_present(self) -> None:
        """Raise GoneError if the run's directory or this one is not there any more. Any thread may call it.

        It stops the run: training to the end and failing at the last save would lose all of that work.
        """
        for directory in self._directories:
            if directory.is_lost():
                raise gone_error(directory.path)

    def save(self, update: int, state: Mapping[str, Any], *, retained: bool = False) -> Saved:
        """Write `state` as the checkpoint of `update`; older ones beyond `keep` are removed afterwards, if they are not
        to be `retained`.

        Each value of `state` is a section. The tensors of a section are written to a file with its name, all other
        values to state.json.

        Raises CheckpointError if there is not enough space or writing fails; existing checkpoints are untouched then.
        Raises GoneError if the run's directory, this one or the newest verified checkpoint is not there any more.
        """
        return self.write(update, snapshot(state), retained=retained)

    def write(self, update: int, state: Snapshot, *, retained: bool = False) -> Saved:
        """Write the snapshot `state` as `save` does. A background thread saves a copy of the state in this way."""
        started, cpu_started = time.monotonic(), time.thread_time()
        freed: list[Path] = []
        while True:
            try:
                self._require_newest()
                self._require_space(self._bytes(state) + MIB)
                self._write_checkpoint(update, state, retained)
                break
            except OSError as error:
                self._recover()
                self.require_present()
                if not (is_disk_full(error) and self._remove_expendable(freed)):
                    raise self._write_error(update, error) from error
            except BaseException:
                self._recover()
                raise
        self._damaged.discard(update)
        self._verified.add(update)
        (self._retained.add if retained else self._retained.discard)(update)
        # The checkpoint is complete. Older ones that cannot be removed now are removed after the next save.
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
        """Return the newest checkpoint that passes verification; None if there are no checkpoints.

        Raises CheckpointError if there are checkpoints and all of them are damaged.
        """
        reasons = []
        with explaining(f"the checkpoints in {self.root} cannot be listed", ", then train again"):
            updates = self.updates()
        for update in reversed(updates):
            path = self.path(update)
            try:
                state = self._read(path, update)
            except DamagedFileError as damage:
                self._damaged.add(update)
                reasons.append(f"{path.name}/{damage.file}: {damage.reason}")
                if self._on_damaged:
                    self._on_damaged(path, damage.file, damage.reason)
                continue
            self._verified.add(update)
            return Restored(update=update, path=path, state=state)
        if reasons:
            raise CheckpointError(
                f"all checkpoints in {self.root} are damaged",
                problems=reasons,
                hint="copy the run again from its source, or start a new run in another directory",
            )
        return None

    def _recover(self) -> None:
        """Clean up after a save that was interrupted by a kill or an error; disk errors are ignored."""
        with suppress(OSError):
            self._clean_up()

    def _clean_up(self) -> None:
        """Remove incomplete checkpoints, and restore one that was not yet replaced. Raises OSError.

        Files and links under such names, and directories under other names, are not of this store.
        """
        for folder in [path for path in self.root.iterdir() if path.is_dir() and not path.is_symlink()]:
            if _UNFINISHED.fullmatch(folder.name):
                remove_own(folder, SAVED)
            elif match := _REPLACED.fullmatch(folder.name):
                if self.path(int(match[1])).exists():
                    remove_own(folder, SAVED)
                else:
                    folder.rename(self.path(int(match[1])))

    def _require_space(self, required_bytes: int) -> None:
        """Raise the OSError of a full disk if there are fewer than `required_bytes` of free space."""
        free = shutil.disk_usage(self.root).free
        space = f"{self.root} has {bytes_text(free)} free"
        if self._limit_bytes is not None:
            remaining = self._limit_bytes - directory_bytes(self.root.parent)
            if remaining < free:
                free = remaining
                limit, free_text = bytes_text(self._limit_bytes), bytes_text(max(0, remaining))
                space = f"the disk limit of the run is {limit}, of which {free_text} are free"
        if required_bytes > free:
            raise OSError(errno.ENOSPC, f"a checkpoint needs {bytes_text(required_bytes)}, but {space}")

    def _write_checkpoint(self, update: int, state: Snapshot, retained: bool) -> None:
        temporary = self.root / f".writing-{update:08d}-{os.getpid()}"
        temporary.mkdir()
        write_set(temporary, update, state, self._write_tensors(temporary, state), retained=retained, run=self._run)
        final, replaced = self.path(update), self._replaced(update)
        # rename(2) replaces a directory only if it is empty. A kill between the two renames leaves the checkpoint under
        # its name `replaced`, from which `_clean_up` restores it.
        if final.exists():
            final.rename(replaced)
        temporary.rename(final)
        sync(self.root)
        remove_own(replaced, SAVED)

    def _bytes(self, state: Snapshot) -> int:
        """Return the size of the checkpoint of a state."""
        return state.bytes

    def _read(self, path: Path, update: int) -> Mapping[str, Any]:
        return read_sections(path, update)

    def _write_tensors(self, folder: Path, state: Snapshot) -> dict[str, FileEntry]:
        """Write the files with the tensors of a state."""
        return write_tensors(folder, state)

    def _require_newest(self) -> None:
        """Raise GoneError if the newest verified checkpoint, or a directory above it, is not there any more.

        Raises OSError if the system cannot tell.
        """
        self.require_present()
        newest = self.newest_verified()
        if newest and not (_exists(newest) or _exists(self._replaced(max(self._verified)))):
            older: list[int] = []
            with suppress(OSError):
                older = self.updates()
            raise gone_error(newest, self.path(older[-1]) if older else None)

    def _replaced(self, update: int) -> Path:
        """Return where the checkpoint of `update` is while another one of the same update takes its place."""
        return self.root / f".replaced-{update:08d}"

    def _remove_expendable(self, freed: list[Path]) -> bool:
        """Remove the first expendable path that exists and add it to `freed`; return False if there is none."""
        with suppress(OSError):
            retained = [self.path(update) for update in sorted(self._retained - self._newest())]
            for path in filter(Path.exists, [*self._expendable(), *retained]):
                remove_own_renamed(path, removed_path(path), SAVED)
                if not path.exists():
                    freed.append(path)
                    return True
        return False

    def _write_error(self, update: int, error: OSError) -> CheckpointError:
        verified = self.newest_verified()
        return CheckpointError(
            f"the checkpoint of update {update} could not be written to {self.root}: {reason(error)}",
            hint=f"the last verified one is {verified}; {remedy(error)}, then train again: the run continues from it"
            if verified
            else f"{remedy(error)}, then train again",
        )

    def _rotate(self) -> None:
        """Remove all but the newest undamaged checkpoints, those to be retained and the newest verified one."""
        keep = self._newest() | (self._retained - self._damaged)
        for update in self.updates():
            if update not in keep:
                self._remove(update)

    def _newest(self) -> set[int]:
        """Return the updates of the newest undamaged checkpoints and of the newest verified one."""
        undamaged = [update for update in self.updates() if update not in self._damaged]
        return {*undamaged[-self._keep :], *([max(self._verified)] if self._verified else [])}

    def _remove(self, update: int) -> None:
        """Remove a checkpoint atomically, by renaming it first; errors are ignored."""
        remove_own_renamed(self.path(update), removed_path(self.path(update)), SAVED)


def _is_retained(path: Path) -> bool:
    """Return whether a checkpoint was written to be kept; a damaged one was not."""
    try:
        return load_manifest(path).retained
    except (OSError, DamagedFileError, CheckpointError):
        return False


def _exists(path: Path) -> bool:
    """Return whether there is something at `path`. Raises OSError if the system cannot tell."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
