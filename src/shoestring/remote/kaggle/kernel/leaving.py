"""Checks and prunes the run's directory of a session on Kaggle: `python -m shoestring.remote.kaggle.kernel.leaving`.

The program of the session calls it after the wheels are installed, and reads its answer, one JSON object:

    check RUN --damaged JSON     removes damaged checkpoints, and names the newest that can be used
    prune RUN --output-bytes N   leaves the smallest run's directory that continues
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

from shoestring.base.errors import ShoestringError
from shoestring.base.reading import is_count, read_json
from shoestring.base.units import bytes_text
from shoestring.training.checkpoint.files import directory_bytes, remove, remove_own, remove_own_renamed
from shoestring.training.checkpoint.manifest import DamagedFileError, read_manifest, verify_file
from shoestring.training.checkpoint.names import SAVED, removed_path, update_of
from shoestring.training.run_directory.contents import CHECKPOINTS, ENTRIES, OWN
from shoestring.training.run_directory.directory import RunDirectory

_NAMES = {entry.name for entry in ENTRIES if entry.on_kaggle != "removed"}
_SHARE_OF_OLDER = 0.1
"""The checkpoint before the newest is left too if both take at most this share of the output."""


def check(run: Path, damaged: Sequence[str]) -> dict[str, Any]:
    """Remove the damaged checkpoints of a copied run, and return the newest that is left, with what was removed.

    `damaged` names files that differ from those that were left, as `path: reason`.
    """
    directory = RunDirectory(run)
    directory.require_own()
    reasons = []
    foreign = {text.split(": ")[0] for text in damaged}
    for entry in ENTRIES:
        is_damaged = entry.name in foreign or not (run / entry.name).is_file()
        if entry.if_damaged == "cannot continue" and is_damaged:
            reasons.append(f"{entry.name} is damaged or missing")
    paths = [PurePath(text).parts for text in foreign]
    for name in {parts[1] for parts in paths if len(parts) > 2 and parts[0] == CHECKPOINTS.name}:
        if update_of(name) is not None:
            remove_own(directory.checkpoints / name, SAVED)
    newest, removed = _newest_verified(directory.checkpoints)
    for entry in ENTRIES:
        # Weights for use are written again by the next save; a damaged copy is of no use.
        if entry.if_damaged == "is written again" and any(path.startswith(f"{entry.name}/") for path in foreign):
            remove_own(run / entry.name, OWN)
    if newest is None:
        reasons.append("no checkpoint is intact")
    return {
        "update": None if reasons or newest is None else update_of(newest.name),
        "checkpoint": newest.name if newest else None,
        "damaged": removed,
        "reason": "; ".join(reasons),
    }


def prune(run: Path, output_bytes: int) -> dict[str, Any]:
    """Leave what continues the run, and return its newest checkpoint with notes about what was left out."""
    directory = RunDirectory(run)
    newest, damaged = _newest_verified(directory.checkpoints)
    notes = []
    if newest:
        older = _older(directory.checkpoints, newest)
        to_keep = {newest}
        if older and directory_bytes(newest) + directory_bytes(older[0]) <= _SHARE_OF_OLDER * output_bytes:
            to_keep.add(older[0])
        for path in older:
            if path not in to_keep:
                retained = _is_retained(path)
                remove_own_renamed(path, removed_path(path), SAVED)
                if retained:
                    notes.append(f"checkpoints/{path.name}, which is to be retained, was left out to save space")
        for path in _entries(directory.checkpoints):
            if path not in to_keep:
                remove(path)
    for path in _entries(run):
        if path.name not in _NAMES or path.is_symlink():
            remove(path)
    run_bytes = directory_bytes(run)
    if run_bytes > output_bytes:
        for entry in ENTRIES:
            if entry.is_expendable:
                remove_own(run / entry.name, OWN)
        notes.append(f"evidence/ and logs/ were left out: the run takes {bytes_text(run_bytes)}")
    return {
        "update": update_of(newest.name) if newest else None,
        "checkpoint": newest.name if newest else None,
        "total_updates": _total_updates(directory),
        "damaged": damaged,
        "notes": notes,
    }


def _newest_verified(checkpoints: Path) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint that passes verification; newer ones are removed and named."""
    damaged = []
    for path in _by_update(checkpoints):
        try:
            manifest = read_manifest(path)
            for name, entry in manifest.files.items():
                verify_file(path / name, entry)
        except DamagedFileError as damage:
            damaged.append(f"checkpoints/{path.name}/{damage.file}: {damage.reason}")
        except (ShoestringError, OSError, ValueError) as error:
            damaged.append(f"checkpoints/{path.name}: {error}")
        else:
            return path, damaged
        remove_own_renamed(path, removed_path(path), SAVED)
    return None, damaged


def _older(checkpoints: Path, newest: Path) -> list[Path]:
    """Return the other checkpoints, the newest first."""
    return [path for path in _by_update(checkpoints) if path != newest]


def _by_update(checkpoints: Path) -> Iterator[Path]:
    """Return the checkpoints, the newest first."""
    paths = [path for path in _entries(checkpoints) if update_of(path.name) is not None and not path.is_symlink()]
    return iter(sorted(paths, key=lambda path: update_of(path.name) or 0, reverse=True))


def _is_retained(path: Path) -> bool:
    try:
        return read_manifest(path).retained
    except (DamagedFileError, ShoestringError, OSError, ValueError):
        return False


def _total_updates(directory: RunDirectory) -> int | None:
    try:
        value = read_json(directory.state_file)["total_updates"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return value if is_count(value) else None


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else []


def main(arguments: Sequence[str]) -> None:
    """Parse the arguments, and print the answer as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=("check", "prune"))
    parser.add_argument("run", type=Path)
    parser.add_argument("--damaged", type=json.loads, default=[])
    parser.add_argument("--output-bytes", type=int, default=0)
    options = parser.parse_args(arguments)
    answer = (
        check(options.run, options.damaged) if options.action == "check" else prune(options.run, options.output_bytes)
    )
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ShoestringError as error:
        sys.exit(str(error))
