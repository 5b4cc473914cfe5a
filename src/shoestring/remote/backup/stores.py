"""What a place for copies can do, and the place that belongs to a URL."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from shoestring.remote.backup.urls import Location


class Store(Protocol):
    """Files by name, in the folders `objects` and `commits`. Every method raises what its library raises."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the size of each file in `folder`, by its name in it; none if there is no folder."""

    def blocks(self, name: str, max_bytes: int) -> Iterator[bytes]:
        """Yield the content of a file. One with more than `max_bytes` is a ValueError."""

    def write(self, name: str, blocks: Iterable[bytes]) -> None:
        """Write a file. If `blocks` raise, nothing with this name and the full size is left."""

    def remove(self, name: str) -> None:
        """Remove a file, as far as possible."""

    def close(self) -> None:
        """Release what belongs to this process: connections and temporary files."""


def open_store(location: Location, on_block: Callable[[int], object] = lambda _: None) -> Store:
    """Return the store at a location. Raises what its library raises.

    `on_block` is called, as a sign of progress, for what moves after `Store.write` has received all blocks.
    """
    if location.scheme == "file":
        from shoestring.remote.backup.folder_store import FolderStore

        return FolderStore(Path(location.path))
    if location.scheme == "hf":
        from shoestring.remote.backup.hugging_face_store import HuggingFaceStore

        return HuggingFaceStore(location.path, on_block=on_block)
    if location.scheme == "kaggle":
        from shoestring.remote.backup.kaggle_store import KaggleStore

        return KaggleStore(location.path, on_block=on_block)
    from shoestring.remote.backup.fsspec_store import FsspecStore

    return FsspecStore(location)
