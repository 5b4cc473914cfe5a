"""The recipe files that may be executed without being named: those that this user has trained with on this machine.

A run's directory may come from someone else, and its plan.json names a recipe file. That file is executed only if a
command names it, or if `$XDG_STATE_HOME/shoestring/trusted.json` (by default below `~/.local/state`) has its digest and
the digests of all files beside it that it imports:

    {"format": 1, "recipes": [{"path": "/home/me/mine.py", "files": {"mine.py": "9f86...", "helper.py": "4413..."}}]}

The newest entry is the last. Only digests decide: a copy of the same files in another folder is trusted too.
"""

import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoestring.base.errors import UsageError
from shoestring.base.reading import read_bytes, read_json
from shoestring.recipe.source import RecipeSource, digest_of
from shoestring.training.checkpoint.files import remove_file, replace, write_text

_FORMAT = 1
_MAX_RECIPES = 200
_MAX_BYTES = 4 << 20
_LOCK_SECONDS = 5.0
_LEFTOVER = re.compile(r"\.trusted\.json\.[0-9]+")


def verified_contents(path: Path, subject: str, *, option: str = "") -> dict[str, bytes]:
    """Return the contents of the recipe file `path` and of the files it imports, by paths relative to its folder.

    `subject` is what names the file, for the error, and `option` the option with which a command can name it.

    Raises UsageError, which names the file that would be executed, if they are not trusted.
    """
    entries: list[dict[str, Any]] = []
    problems: list[str] = []
    try:
        entries = _read(trusted_file())
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        problems = [f"{trusted_file()} cannot be used, so no file is trusted: {error}"]
    for entry in reversed(entries):
        if Path(entry["path"]).name != path.name:
            continue
        contents, changed = _compare(path, entry["files"])
        if not changed:
            return contents
        if entry["path"] == str(path) and not problems:
            problems.append(f"changed since it was last trained with: {', '.join(changed)}")
    raise UsageError(
        f"{subject} would execute the file {path}, which this command does not name and which you have not "
        "trained with on this machine as it is now",
        problems=problems,
        hint=f"a run from someone else may name any file; if you trust this one, name it: {option}{path}",
    )


def remember(source: RecipeSource) -> str:
    """Trust the recipe's file and all files that it imports. Returns a note if they could not be recorded."""
    try:
        _add(trusted_file(), {"path": str(source.path), "files": source.files})
    except OSError as error:
        return (
            f"the digest of {source.path} could not be recorded, so that evaluating the run will need --recipe: {error}"
        )
    return ""


def trusted_file() -> Path:
    """Return the file with the trusted digests. Raises OSError if the user has no home directory."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        # The specification of the variable says that a relative path is to be ignored.
        folder = Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise FileNotFoundError(str(error)) from error
    return folder / "shoestring" / "trusted.json"


def _compare(path: Path, digests: Mapping[str, str]) -> tuple[dict[str, bytes], list[str]]:
    """Return the contents of the files with these digests, and the names of those whose digests differ."""
    contents, changed = {}, []
    for name, digest in digests.items():
        try:
            contents[name] = read_bytes(path.parent / name, follow=True, max_bytes=_MAX_BYTES)
        except (OSError, ValueError):
            changed.append(name)
            continue
        if digest_of(contents[name]) != digest:
            changed.append(name)
    return contents, changed


def _add(file: Path, entry: dict[str, Any]) -> None:
    """Add an entry as the newest one. Raises OSError."""
    file.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    with _locked(file.parent):
        for leftover in filter(lambda path: _LEFTOVER.fullmatch(path.name), file.parent.iterdir()):
            remove_file(leftover)
        try:
            file.parent.chmod(0o700)
            entries = _read(file)
        except (FileNotFoundError, ValueError):  # a damaged file is replaced
            entries = []
        if entries[-1:] == [entry]:
            return
        entries = [*(other for other in entries if other != entry), entry][-_MAX_RECIPES:]
        while len(text := json.dumps({"format": _FORMAT, "recipes": entries}, indent=1)) >= _MAX_BYTES and entries:
            entries = entries[1:]
        replace(file, lambda temporary: _write_private(temporary, text))


def _write_private(path: Path, text: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    write_text(path, text)


def _read(file: Path) -> list[dict[str, Any]]:
    """Return the entries, the newest last. Raises OSError, and ValueError if the file is damaged or not private."""
    for path, is_kind in ((file.parent, stat.S_ISDIR), (file, stat.S_ISREG)):
        status = path.lstat()
        if not is_kind(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise ValueError(f"{path} is a link, belongs to another user or is writable by others")
    if file.stat().st_size > _MAX_BYTES:
        raise ValueError(f"it has more than {_MAX_BYTES} bytes")
    value = read_json(file)
    entries = value.get("recipes") if isinstance(value, dict) and value.get("format") == _FORMAT else None
    if not isinstance(entries, list) or not all(map(_is_entry, entries)):
        raise ValueError("it is damaged")
    return entries


def _is_entry(value: object) -> bool:
    path, files = (value.get("path"), value.get("files")) if isinstance(value, dict) else (None, None)
    if not isinstance(path, str) or not isinstance(files, dict):
        return False
    return Path(path).name in files and all(isinstance(digest, str) for digest in files.values())


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Admit one writer at a time; on a filesystem without locks a race remains.

    Raises TimeoutError if another writer does not end.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        give_up_at = time.monotonic() + _LOCK_SECONDS
        while not _lock(descriptor):
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"{folder} stays locked by another process")
            time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Return whether no other process has the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
