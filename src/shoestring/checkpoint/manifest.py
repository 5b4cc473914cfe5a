"""What a checkpoint's manifest.json says, and whether the files beside it are the ones it speaks of."""

import hashlib
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from shoestring.checkpoint.files import read_json, regular_bytes, sha256
from shoestring.errors import CheckpointError

FORMAT = 1
_FILE = re.compile(r"[a-z_]{1,64}\.safetensors|state\.json")


class Damaged(Exception):  # noqa: N818  (a finding about a file, turned into an event or an error by the caller)
    def __init__(self, file: str, why: str) -> None:
        super().__init__(file, why)
        self.file, self.why = file, why


def signed(manifest: dict[str, Any]) -> dict[str, Any]:
    """`manifest` with the SHA-256 of all that stands in it."""
    return {**manifest, "sha256": _digest(manifest)}


def verify(folder: Path, update: int, *, only: Collection[str] | None = None) -> set[str]:
    """The names of the files in `folder`, the checkpoint of `update`, each of which is what was written; of those in
    `only` where that is given, whatever became of the others.

    Raises Damaged otherwise, and CheckpointError for a format of another version.
    """
    manifest = _manifest(folder)
    if manifest.get("format") != FORMAT:
        raise CheckpointError(
            f"{folder} is of format {str(manifest.get('format'))[:20]}, this version reads {FORMAT}",
            hint="continue with the version of shoestring that wrote it",
        )
    files = manifest.get("files")
    if manifest.get("update") != update or not isinstance(files, dict) or "state.json" not in files:
        raise Damaged("manifest.json", "it does not describe this checkpoint")
    if not all(map(_FILE.fullmatch, files)):
        raise Damaged("manifest.json", "it does not describe this checkpoint: no file of one has such a name")
    wanted = {name: expected for name, expected in files.items() if only is None or name in only}
    for name, expected in wanted.items():
        _verify_file(folder / name, expected)
    return set(wanted)


def _verify_file(path: Path, expected: Any) -> None:
    if not isinstance(expected, dict) or expected.keys() != {"bytes", "sha256"}:
        raise Damaged("manifest.json", f"it does not describe {path.name}")
    try:
        size = regular_bytes(path)
        if size != expected["bytes"]:
            raise Damaged(path.name, f"it has {size} bytes, {str(expected['bytes'])[:20]} were written")
        if sha256(path) != expected["sha256"]:
            raise Damaged(path.name, "its bytes are not those that were written")
    except FileNotFoundError as error:
        raise Damaged(path.name, "it is not there") from error
    except (OSError, ValueError) as error:
        raise Damaged(path.name, f"it cannot be read: {error}") from error


def _manifest(folder: Path) -> dict[str, Any]:
    if folder.is_symlink():
        raise Damaged("manifest.json", "the checkpoint is a link to elsewhere")
    try:
        manifest = read_json(folder / "manifest.json")
    except (OSError, ValueError) as error:
        raise Damaged("manifest.json", f"it cannot be read: {error}") from error
    digest = manifest.pop("sha256", None) if isinstance(manifest, dict) else None
    if digest is None or digest != _digest(manifest):
        raise Damaged("manifest.json", "its bytes are not those that were written")
    return dict(manifest)


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
