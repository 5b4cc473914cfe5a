"""Copies as versions of a Kaggle data set, through the official client."""

from collections.abc import Iterable, Iterator

from shoestring.errors import UsageError


class KaggleStore:
    """Not available yet."""

    def __init__(self, path: str) -> None:
        raise UsageError(
            f"kaggle://{path}: copies to Kaggle are not available in this version", hint="use s3:// or hf://"
        )

    def sizes(self, folder: str) -> dict[str, int]:
        raise NotImplementedError

    def blocks(self, name: str, max_bytes: int) -> Iterator[bytes]:
        raise NotImplementedError

    def write(self, name: str, blocks: Iterable[bytes]) -> None:
        raise NotImplementedError

    def remove(self, name: str) -> None:
        raise NotImplementedError
