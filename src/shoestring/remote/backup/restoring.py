"""Beginning from a copy: the newest one is restored into a hidden folder, verified, and moved to its places."""

import errno
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

from shoestring.base.errors import RunError, ShoestringError, UsageError
from shoestring.base.streams import write_messages
from shoestring.base.system_errors import explaining, reason
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
from shoestring.remote.backup.identity import read_identity, write_identity
from shoestring.remote.backup.opened import newest_checkpoint
from shoestring.remote.backup.stores import Store, open_store
from shoestring.remote.backup.urls import Location, redacted
from shoestring.training.checkpoint.files import sync, write_file
from shoestring.training.checkpoint.manifest import FileEntry
from shoestring.training.run_directory.arriving import Arrival, remove_empty, unexpected_names
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.lock import locked


def restore(run: Path, location: Location, *, is_backup: bool = False) -> str:
    """Restore the newest copy that verifies into `run`, if there is no run yet. Returns a message for the person.

    `is_backup`: the run is also copied to `location`, which may be empty: then the run begins.

    Raises UsageError if there are no copies, or if `run` has another run or one that is not as far. Raises RunError if
    no copy is intact or there is no space.
    """
    if location.scheme == "file" and Path(location.path).is_file():
        raise UsageError(f"{location.option} {location.url} is a file", hint="give the folder of the copies")
    with ExitStack() as stack:
        try:
            store = stack.enter_context(closing(open_store(location)))
            names = names_of(store.sizes(COMMITS))
        except ShoestringError as error:
            raise RunError(
                f"{location.option} {location.url} cannot be read: {redacted(error.message)}", hint=error.hint
            ) from error
        except Exception as error:
            raise RunError(
                f"{location.option} {location.url} cannot be read: {redacted(str(error) or type(error).__name__)}",
                hint="check the URL, the network and the credentials in the environment, then train again",
            ) from error
        return _restore(run, store, names, location, is_backup=is_backup)


def _restore(run: Path, store: Store, names: list[CommitName], location: Location, *, is_backup: bool) -> str:
    directory = RunDirectory(run)
    directory.require_own()
    if directory.plan_file.exists():
        return _compare(directory, store, names, location)
    if not names and is_backup:
        _create_place(location)
        return f"{location.url} has no copy of a run yet: the run begins"
    if not names:
        raise UsageError(
            f"{location.option} {location.url}: there is no complete copy of a run",
            hint=f"check the URL; to start a new run, leave out {location.option}, or give the same URL as the backup",
        )
    with explaining(f"{run} could not be restored", ", then train again"):
        is_new = not run.exists()
        run.mkdir(parents=True, exist_ok=True)
        arrival = Arrival(run)
        if not arrival.is_complete:
            _require_empty(run)
        with locked(run):
            if arrival.is_complete:
                arrival.finish()
                return _compare(directory, store, names, location)
            _require_empty(run)  # again: another session may have begun a run here
            try:
                commit, notes = _restore_newest(run, arrival, store, names, location)
            finally:
                if not arrival.is_complete:  # else some files may be in their places
                    arrival.discard()
                if is_new:
                    remove_empty(run)
    write_messages(*(f"note: {note}" for note in notes))
    return f"restored update {commit.update} from {location.url}: {len(commit.files)} files, {bytes_text(commit.bytes)}"


def _create_place(location: Location) -> None:
    """Create a folder for copies. Raises UsageError if it cannot be, or if the folder that contains it does not exist:
    a disk that is not mounted is not an empty place.
    """
    if location.scheme != "file":
        return
    path = Path(location.path)
    if not path.parent.is_dir():
        raise UsageError(
            f"{location.option} {location.url}: the folder {path.parent} does not exist",
            hint=f"mount the disk that it is on, or create it: mkdir -p {shlex.quote(str(path.parent))}",
        )
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{location.option} {location.url}: the folder cannot be created: {reason(error)}",
            hint="choose a folder in which files can be written",
        ) from error


def _compare(run: RunDirectory, store: Store, names: list[CommitName], location: Location) -> str:
    """Return that the run is as far as its copy. Raises UsageError if not, or if it is another run."""
    update = newest_checkpoint(run) or 0
    own_id = _own_id(run)
    for name in names:
        try:
            commit = _read_commit(store, name)
        except ValueError:
            continue
        if own_id != commit.run:
            run_here = f"run {own_id[:8]}" if own_id else "one that was never copied"
            raise UsageError(
                f"{run.path} has another run than {location.url}: {run_here} here, run {commit.run[:8]} there",
                hint="give another directory: --run runs/NAME; or, to continue the run that is here, leave out "
                f"{location.option}",
            )
        if commit.update > update:
            raise UsageError(
                f"the copy in {location.url} is at update {commit.update}, but the run in {run.path} is at "
                f"update {update}; {location.option} overwrites no run",
                hint="to continue the copy, give another directory: --run runs/NAME; to continue the run that is here, "
                f"leave out {location.option}",
            )
        break
    if not names:
        return f"{run.path} is at update {update}, and {location.url} has no copy: nothing is restored"
    return f"{run.path} is at update {update}, at least as far as its copy in {location.url}: nothing is restored"


def _own_id(run: RunDirectory) -> str | None:
    """Return the id of a run; for one of an earlier version the id of its copies, None if it was never copied."""
    identity, copied = run.identity(), read_identity(run.backup_file)
    return identity.id if identity else copied["run"] if copied else None


def _require_empty(run: Path) -> None:
    if unexpected := unexpected_names(run, "restore"):
        raise UsageError(
            f"{run} is not empty and contains no run: {', '.join(unexpected[:5])}",
            hint="choose an empty or new directory: --run runs/NAME",
        )


def _restore_newest(
    run: Path, arrival: Arrival, store: Store, names: list[CommitName], location: Location
) -> tuple[Commit, list[str]]:
    problems = []
    for name in names:
        try:
            commit = _read_commit(store, name)
            _require_space(run, commit)
            arrival.begin()
            _restore_files(arrival.files, store, commit)
            write_identity(RunDirectory(arrival.files).backup_file, commit.run, location.url)
            RunDirectory(arrival.files).require_own()
        except (_DamagedCopyError, ValueError) as error:
            problems.append(f"{name}: {error}")
            continue
        arrival.finish()
        return commit, [f"damaged in {location.url}: {problem}; the copy before it is taken" for problem in problems]
    raise RunError(
        f"no copy in {location.url} can be restored",
        problems=problems,
        hint=f"continue from another copy of the run, or start a new run without {location.option}",
    )


class _DamagedCopyError(Exception):
    """A file of a copy is missing or is not what was written."""


def _restore_files(folder: Path, store: Store, commit: Commit) -> None:
    """Write the files of a copy below `folder` and verify each. Raises _DamagedCopyError and OSError of the disk."""
    # The small ones first: a copy that is damaged there costs little.
    for path, entry in sorted(commit.files.items(), key=lambda item: item[1].bytes):
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            digest = write_file(file, _Reading(store, path, entry))
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), str(file)) from error
        if digest != entry.sha256 or file.stat().st_size != entry.bytes:
            raise _DamagedCopyError(f"{path}: its size or its digest does not match the commit")
    for parent, _, _ in os.walk(folder, topdown=False):
        sync(Path(parent))


class _Reading:
    """The blocks of an object. An error of the place is told from one of the disk that they are written to."""

    def __init__(self, store: Store, path: str, entry: FileEntry) -> None:
        self._store, self._path, self._entry = store, path, entry

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._store.blocks(f"{OBJECTS}/{self._entry.sha256}", self._entry.bytes)
        except GeneratorExit:
            raise
        except FileNotFoundError:
            raise _DamagedCopyError(f"{self._path}: its object is missing") from None
        except ValueError as error:
            raise _DamagedCopyError(f"{self._path}: {error}") from error
        except Exception as error:
            text = redacted(str(error) or type(error).__name__)
            if isinstance(error, OSError) and error.errno == errno.EIO:  # of the disk with the copies
                raise _DamagedCopyError(f"{self._path}: it cannot be read: {text}") from error
            # A place that does not answer now has not lost the copy: an older one is no answer to that.
            raise RunError(
                f"{self._path} of the newest copy cannot be read: {text}", hint="train again from the same place"
            ) from error


def _require_space(run: Path, commit: Commit) -> None:
    free = shutil.disk_usage(run).free
    if commit.bytes + MIB > free:
        raise RunError(
            f"the copy has {bytes_text(commit.bytes)}, but {run} has {bytes_text(free)} free",
            hint="free disk space there, or restore to another disk: --run",
        )


def _read_commit(store: Store, name: CommitName) -> Commit:
    """Return a commit. Raises ValueError if it is damaged or missing."""
    try:
        return parse_commit(b"".join(store.blocks(name.path, MAX_COMMIT_BYTES)), name)
    except FileNotFoundError:
        raise ValueError("it is missing") from None
