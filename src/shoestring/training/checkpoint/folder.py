"""A folder of a run's own small files that is complete or absent, with the digest of each file in its `manifest.json`.

{"format": 1, "files": {"scaler.json": {"bytes": 812, "sha256": "9f86..."}}, "run": {"id": "0b7a..."}, "sha256": "..."}
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from shoestring.base.errors import CheckpointError
from shoestring.base.reading import COUNT, OBJECT, find_problems, read_json
from shoestring.training.checkpoint.files import (
    json_text,
    matches_digest,
    remove,
    sha256,
    sync,
    with_digest,
    write_text,
)
from shoestring.training.checkpoint.identity import RunIdentity

MANIFEST = "manifest.json"
_FORMAT = 1


def write_folder(folder: Path, write: Callable[[Path], object], run: RunIdentity | None = None) -> None:
    """Create `folder` atomically from the files that `write` creates in the empty directory passed to it.

    The manifest names the `run`.

    The caller has locked the parent directory. Raises OSError; then there is no such folder.
    """
    temporary = folder.with_name(f".{folder.name}")
    remove(temporary)
    try:
        temporary.mkdir(parents=True)
        write(temporary)
        entries = {}
        for name in _names(temporary):
            path = temporary / name
            sync(path)
            entries[name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
        named = {"run": run.json()} if run else {}
        write_text(temporary / MANIFEST, json_text(with_digest({"format": _FORMAT, "files": entries, **named})))
        sync(temporary)
        temporary.rename(folder)
    finally:
        remove(temporary)
    sync(folder.parent)


def verify_folder(folder: Path) -> None:
    """Raise CheckpointError unless the folder has exactly the files of its manifest, with their digests."""
    if problems := _find_problems(folder):
        raise CheckpointError(
            f"{folder} is damaged", problems=problems[:20], hint="copy the folder again from its source"
        )


def read_run(folder: Path) -> RunIdentity | None:
    """Return the run that the manifest of a folder names. Raises OSError, and ValueError for a damaged manifest."""
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or not matches_digest(manifest):
        raise ValueError(f"{MANIFEST}: its SHA-256 digest does not match its content")
    return RunIdentity.from_json(manifest["run"]) if "run" in manifest else None


def _find_problems(folder: Path) -> list[str]:
    try:
        manifest = read_json(folder / MANIFEST)
    except (OSError, ValueError) as error:
        return [f"{MANIFEST} cannot be read: {error}"]
    if not isinstance(manifest, dict) or not matches_digest(manifest):
        return [f"{MANIFEST}: its SHA-256 digest does not match its content"]
    if problems := find_problems(manifest, {"format": COUNT, "files": OBJECT}):
        return problems
    entries, names = manifest["files"], set(_names(folder))
    problems = [f"{name} is missing" for name in sorted(entries.keys() - names)]
    problems += [f"{name} is not in {MANIFEST}" for name in sorted(names - entries.keys())]
    for name in sorted(names & entries.keys()):
        try:
            if sha256(folder / name) != entries[name].get("sha256"):
                problems.append(f"{name}: its SHA-256 digest does not match {MANIFEST}")
        except (OSError, ValueError, AttributeError) as error:
            problems.append(f"{name} cannot be read: {error}")
    return problems


def _names(folder: Path) -> Iterator[str]:
    """Yield the relative names of the files and links below `folder`, except its manifest; no link is followed."""
    for parent, folders, files in os.walk(folder):
        folders.sort()
        links = [name for name in folders if Path(parent, name).is_symlink()]
        for name in sorted([*files, *links]):
            relative = Path(parent, name).relative_to(folder).as_posix()
            if relative != MANIFEST:
                yield relative
