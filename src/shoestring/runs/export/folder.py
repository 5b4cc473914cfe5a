"""The folder of an export: written completely under a hidden name, then renamed, with the digest of each file.

A folder that is replaced is first moved aside under another hidden name. A process that is killed between the two
renames leaves it there, and the next export moves it back. `export.json` identifies the folder as that of an export:

{"format": "onnx", "recipe": "temporal", ..., "files": {"model.onnx": {"bytes": 81230, "sha256": "9f86..."}}}
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from shoestring.base.errors import RunError, UsageError
from shoestring.base.processes import is_running
from shoestring.base.reading import read_json
from shoestring.base.system_errors import explaining
from shoestring.base.units import bytes_text
from shoestring.runs.exported import MANIFEST
from shoestring.training.checkpoint.files import (
    directory_bytes,
    json_text,
    matches_digest,
    remove,
    sha256,
    sync,
    with_digest,
    write_text,
)
from shoestring.training.run_directory.contents import PLAN

CARD = "README.md"
_RUST_ERROR = re.compile(r"\(os error ([0-9]{1,3})\)")
_HIDDEN = re.compile(r"\.(?P<name>.+)\.(?P<state>writing|replaced)-(?P<pid>[0-9]{1,9})")


def require_replaceable(folder: Path, *, overwrite: bool) -> None:
    """Raise UsageError if `folder` exists, unless it may be overwritten and has only files that an export wrote."""
    if not os.path.lexists(folder):
        return
    if not overwrite:
        raise UsageError(
            f"{folder} exists", hint="choose another folder: --out FOLDER, or replace this export: --overwrite"
        )
    if problem := _find_foreign_files(folder):
        raise UsageError(
            f"{folder} is not replaced: {problem}", hint="move it away, or choose another folder: --out FOLDER"
        )


def require_space(folder: Path, parts: Mapping[str, int]) -> None:
    """Raise RunError if the disk of `folder` does not have the space for `parts`, which are bytes by name."""
    existing = next(parent for parent in folder.absolute().parents if parent.is_dir())
    with explaining(f"the free space of {existing} is not known"):
        free_bytes = shutil.disk_usage(existing).free
    if sum(parts.values()) > free_bytes:
        raise RunError(
            f"the export needs {bytes_text(sum(parts.values()))} of disk space, but the disk of {existing} has "
            f"{bytes_text(free_bytes)}",
            problems=[f"{name}: {bytes_text(size)}" for name, size in parts.items()],
            hint="free disk space there, or choose a folder on another disk: --out FOLDER",
        )


@contextmanager
def writing(folder: Path, *, overwrite: bool) -> Iterator[Path]:
    """Return an empty folder to write to, which becomes `folder` at the end of the context. After an error it is gone.

    Raises UsageError as `require_replaceable` does, and an error with a hint if the disk refuses.
    """
    with explaining(f"{folder} could not be written"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        require_replaceable(folder, overwrite=overwrite)
        temporary = _hidden(folder, "writing")
        temporary.mkdir()
        try:
            with _errors_of_libraries(temporary):
                yield temporary
            _share(temporary)
            _sync_all(temporary)
            require_replaceable(folder, overwrite=overwrite)  # another process may have written it since
            _rename(temporary, folder)
        finally:
            remove(temporary)


def write_manifest(folder: Path, facts: Mapping[str, Any]) -> tuple[list[str], int]:
    """Write the facts and the digest of each file to the folder. Return the names of all files and their total size."""
    names = _file_names(folder)
    files = {name: {"bytes": (folder / name).stat().st_size, "sha256": sha256(folder / name)} for name in names}
    write_text(folder / MANIFEST, json_text(with_digest({**facts, "files": files})))
    return sorted([*names, MANIFEST]), directory_bytes(folder)


def _rename(temporary: Path, folder: Path) -> None:
    """Rename the complete folder to its final name, in place of an older one."""
    replaced = _hidden(folder, "replaced")
    if folder.exists():
        folder.rename(replaced)
    try:
        temporary.rename(folder)
    except BaseException:
        with suppress(OSError):
            replaced.rename(folder)
        raise
    sync(folder.parent)
    remove(replaced)


def _hidden(folder: Path, state: str) -> Path:
    return folder.with_name(f".{folder.name}.{state}-{os.getpid()}")


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed processes have left of exports to `folder`, or move back what they were replacing.

    In a run's directory, that of all exports is removed; elsewhere, folders of such names may be somebody else's.
    """
    in_run = (folder.parent.parent / PLAN.name).is_file()
    for path in sorted(folder.parent.iterdir()):
        match = _HIDDEN.fullmatch(path.name)
        if not match or not (in_run or match["name"] == folder.name) or path.is_symlink() or not path.is_dir():
            continue
        if int(match["pid"]) != os.getpid() and is_running(int(match["pid"])):
            continue
        final = path.with_name(match["name"])
        if match["state"] == "replaced" and not os.path.lexists(final):
            path.rename(final)
        else:
            remove(path)


def _find_foreign_files(folder: Path) -> str | None:
    """Return why the folder may have files that no export wrote; None if all are of one export."""
    if folder.is_symlink() or not folder.is_dir():
        return "it is not a folder"
    try:
        manifest = read_json(folder / MANIFEST)
    except (OSError, ValueError):
        return f"it is not an export: it has no {MANIFEST} that can be read"
    files = manifest.get("files") if isinstance(manifest, dict) and matches_digest(manifest) else None
    if not isinstance(files, dict):
        return f"it is not an export: its {MANIFEST} has changed"
    foreign = sorted(set(_file_names(folder)) - files.keys() - {MANIFEST})
    if foreign:
        return f"it has files that the export did not write: {', '.join(foreign[:5])}"
    return f"its {CARD} has been edited" if _is_changed(folder / CARD, files.get(CARD)) else None


def _is_changed(path: Path, entry: Any) -> bool:
    """Return whether a file that exists has another digest than its entry in the manifest."""
    try:
        return not isinstance(entry, dict) or sha256(path) != entry.get("sha256")
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True


def _file_names(folder: Path) -> list[str]:
    """Return the relative names of everything below the folder that is not a folder."""
    paths = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(path.relative_to(folder).as_posix() for path in paths)


@contextmanager
def _errors_of_libraries(folder: Path) -> Iterator[None]:
    """Raise OSError for what libraries in Rust raise of their own, such as safetensors when the disk is full."""
    try:
        yield
    except Exception as error:
        if match := _RUST_ERROR.search(str(error)):
            number = int(match[1])
            raise OSError(number, os.strerror(number), str(folder)) from error
        raise


def _share(folder: Path) -> None:
    """Let everybody read the files who may read the manifest: libraries write some for their own user alone."""
    mode = (folder / MANIFEST).stat().st_mode
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)


def _sync_all(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        sync(path)
