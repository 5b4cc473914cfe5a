"""Digests of what predictions are made from, to recognise the same weights and the same data."""

import hashlib
import os
from pathlib import Path

from shoestring.checkpoint.files import sha256
from shoestring.checkpoint.manifest import MANIFEST
from shoestring.errors import DataError
from shoestring.system_errors import explain

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
    """Return the SHA-256 of a data file; of a folder that of the names and sizes of its files.

    Raises DataError if it cannot be read.
    """
    try:
        if not path.is_dir():
            return sha256(path, follow=True)
        digest = hashlib.sha256()
        for parent, folders, names in os.walk(path):
            folders.sort()
            for name in sorted(names):
                file = Path(parent, name)
                digest.update(f"{file.relative_to(path)}\0{file.stat().st_size}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}", hint="give the inputs with --set data=PATH") from error
