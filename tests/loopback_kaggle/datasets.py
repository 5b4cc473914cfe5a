"""Datasets: versions of flat files that take a while to be processed, and the uploads they are made of."""

import secrets
import shutil
import threading
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PROCESSING, _READY = "BLOBS_RECEIVED", "READY"


@dataclass(kw_only=True)
class Blob:
    """An upload: its file, and the size that was announced."""

    name: str
    bytes: int
    path: Path


@dataclass(kw_only=True)
class Dataset:
    reference: str
    versions: list[Path] = field(default_factory=list)
    processed: float = 0.0
    """When the newest version is ready, by `time.monotonic()`."""

    @property
    def status(self) -> str:
        return _READY if time.monotonic() >= self.processed else _PROCESSING


class BusyError(Exception):
    """The version before is still processed."""


class Datasets:
    def __init__(self, folder: Path, processing_seconds: float) -> None:
        self._folder, self._processing_seconds = folder, processing_seconds
        self.lock = threading.RLock()
        self.datasets: dict[str, Dataset] = {}
        self.blobs: dict[str, Blob] = {}

    def content(self, reference: str) -> Path | None:
        """Return the folder of the newest version that is ready."""
        dataset = self.datasets.get(reference)
        if dataset is None:
            return None
        ready = dataset.versions if dataset.status == _READY else dataset.versions[:-1]
        return ready[-1] if ready else None

    def add(self, reference: str, files: dict[str, bytes]) -> None:
        """Make a dataset that is ready at once."""
        folder = self._new_folder()
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        self.datasets.setdefault(reference, Dataset(reference=reference)).versions.append(folder)

    def start_upload(self, body: dict[str, Any]) -> str:
        token = secrets.token_hex(12)
        path = self._folder / "blobs" / token
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self.blobs[token] = Blob(name=Path(body["name"]).name, bytes=int(body.get("contentLength") or 0), path=path)
        return token

    def save(self, reference: str, files: list[dict[str, Any]], *, is_new: bool, delete_old: bool = False) -> None:
        """Make a version of the uploaded files. Raises KeyError, BusyError, and ValueError for one that exists."""
        with self.lock:
            if is_new and reference in self.datasets:
                raise ValueError("already in use by a dataset")
            dataset = Dataset(reference=reference) if is_new else self.datasets[reference]
            if dataset.status != _READY:
                raise BusyError
            folder = self._new_folder()
            for file in files:
                blob = self.blobs[file["token"]]
                if blob.path.stat().st_size == blob.bytes:  # an upload that broke off is left out without a word
                    shutil.copyfile(blob.path, folder / blob.name)
                    _unpack(folder / blob.name)
            dataset.versions = [*([] if delete_old else dataset.versions), folder]
            dataset.processed = time.monotonic() + self._processing_seconds
            self.datasets[reference] = dataset

    def _new_folder(self) -> Path:
        folder = self._folder / "datasets" / secrets.token_hex(6)
        folder.mkdir(parents=True)
        return folder


def _unpack(path: Path) -> None:
    """Replace an archive by a folder of its name, as Kaggle does: clients upload folders so."""
    if zipfile.is_zipfile(path) and path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            archive.extractall(path.with_suffix(""))
        path.unlink()
