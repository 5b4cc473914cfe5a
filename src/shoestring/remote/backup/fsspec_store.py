"""Copies in an object store, or in another place that a filesystem of fsspec reaches."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from shoestring.remote.backup.urls import Location

_BLOCK_BYTES = 8 << 20
_WITHOUT_FOLDERS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "adl")
"""Object stores, where making a folder may make a bucket."""


class FsspecStore:
    """Files below a URL. A write that fails leaves no object, or one of another size, which is written again."""

    def __init__(self, location: Location) -> None:
        """Raises ImportError and what the filesystem raises."""
        import fsspec

        self._has_folders = location.scheme not in _WITHOUT_FOLDERS
        # Listings have to be those of the present, also after another machine has written.
        options = {} if self._has_folders else {"use_listings_cache": False, "skip_instance_cache": True}
        self._filesystem: Any = fsspec.filesystem(location.scheme, **options)
        root = location.path if not self._has_folders else self._filesystem._strip_protocol(location.url)
        self._root = str(root).rstrip("/")

    def sizes(self, folder: str) -> dict[str, int]:
        path = f"{self._root}/{folder}"
        self._filesystem.invalidate_cache()
        try:
            entries = self._filesystem.ls(path, detail=True)
        except FileNotFoundError:
            return {}
        return {str(entry["name"]).rpartition("/")[2]: entry["size"] for entry in entries if entry["type"] == "file"}

    def blocks(self, name: str, max_bytes: int) -> Iterator[bytes]:
        total = 0
        with self._filesystem.open(
            f"{self._root}/{name}", "rb", block_size=_BLOCK_BYTES, cache_type="readahead"
        ) as file:
            while block := file.read(_BLOCK_BYTES):
                total += len(block)
                if total > max_bytes:
                    raise ValueError(f"it has more than {max_bytes} bytes")
                yield block

    def write(self, name: str, blocks: Iterable[bytes]) -> None:
        path = f"{self._root}/{name}"
        if self._has_folders:
            self._filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
        file = self._filesystem.open(path, "wb")
        try:
            for block in blocks:
                file.write(block)
        except BaseException:
            # To close the file, which its destructor does too, would complete the object.
            with suppress(Exception):
                file.discard()
            with suppress(Exception):
                file.closed = True
            raise
        file.close()

    def remove(self, name: str) -> None:
        with suppress(Exception):
            self._filesystem.rm_file(f"{self._root}/{name}")

    def close(self) -> None:
        """Nothing is held."""
