"""Digests of what predictions are made from, to recognize the same weights and the same data."""

import hashlib
import os
from pathlib import Path

from shoestring.base.errors import DataError
from shoestring.base.system_errors import explain
from shoestring.base.units import MIB
from shoestring.training.checkpoint.files import sha256
from shoestring.training.checkpoint.manifest import MANIFEST

_MAX_CONTENT_BYTES = 512 * MIB
"""A second of reading; larger folders are recognized without it."""
_WEIGHTS = (".safetensors", ".bin", ".pth", ".pt", ".json")


def weights_digest(path: Path) -> str:
    """Return the SHA-256 of weights: of a file, of a manifest, which has the digests of its files, or of all files.

    Raises ShoestringError if they cannot be read.
    """
    try:
        if path.is_file():
            return sha256(path, follow=True)
        if (path / MANIFEST).is_file():
            return sha256(path / MANIFEST)
        digest = hashlib.sha256()
        for file in sorted(file for file in path.iterdir() if file.suffix in _WEIGHTS):
            digest.update(f"{file.name} {sha256(file, follow=True)}\n".encode())
        return digest.hexdigest()
    except OSError as error:
        raise explain(f"{path} cannot be read", error) from error


def data_digest(path: Path) -> str:
    """Return the SHA-256 of a data file, or of the names and contents of the files in a folder.

    Of a folder of more than `_MAX_CONTENT_BYTES` it is that of names, sizes and times of change.

    Raises DataError if it cannot be read.
    """
    try:
        if not path.is_dir():
            return sha256(path, follow=True)
        files = {
            file.relative_to(path).as_posix(): file.stat()
            for parent, _, names in os.walk(path)
            for file in (Path(parent, name) for name in names)
            if file.is_file()
        }
        is_small = sum(status.st_size for status in files.values()) <= _MAX_CONTENT_BYTES
        digest = hashlib.sha256()
        for name, status in sorted(files.items()):
            content = sha256(path / name, follow=True) if is_small else f"{status.st_size} {status.st_mtime_ns}"
            digest.update(f"{name}\0{content}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}", hint="give the inputs with --set data=PATH") from error
