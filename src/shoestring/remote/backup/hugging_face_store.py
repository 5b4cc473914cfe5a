"""Copies in a repository of the Hugging Face hub: of a model, or with `datasets/` of a dataset. A copy is a commit.

Objects are uploaded when they are written, and become part of the repository with the commit that lists them.
"""

import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

_BLOCK_BYTES = 8 << 20
_TIMEOUT_SECONDS = 60


class HuggingFaceStore:
    """Files below a folder of a repository, which is created as a private one if it does not exist."""

    def __init__(self, path: str) -> None:
        """`path` is `[datasets/]USER/REPO[/FOLDER]`. The token is read as the hub's own client does."""
        from huggingface_hub import HfApi

        kind = "dataset" if path.startswith("datasets/") else "model"
        user, name, *folders = path.removeprefix("datasets/").removeprefix("models/").split("/")
        self._api = HfApi()
        self._repository: dict[str, Any] = {"repo_id": f"{user}/{name}", "repo_type": kind}
        self._root = "/".join(folders)
        self._written: list[Any] = []
        """The operations that the next commit makes."""
        self._temporary: list[BinaryIO] = []
        self._removed: list[str] = []

    def sizes(self, folder: str) -> dict[str, int]:
        from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError
        from huggingface_hub.hf_api import RepoFile

        path = self._path(folder)
        sizes = {}
        try:
            for entry in self._api.list_repo_tree(**self._repository, path_in_repo=path):
                if isinstance(entry, RepoFile):
                    sizes[entry.path.rpartition("/")[2]] = entry.size
        except (EntryNotFoundError, RepositoryNotFoundError):
            sizes = {}
        for operation in self._written:
            if operation.path_in_repo.rpartition("/")[0] == path:
                sizes[operation.path_in_repo.rpartition("/")[2]] = operation.upload_info.size
        return sizes

    def blocks(self, name: str, max_bytes: int) -> Iterator[bytes]:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.errors import EntryNotFoundError
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status  # type: ignore[attr-defined]

        for operation in self._written:
            if operation.path_in_repo == self._path(name):
                with operation.as_file() as file:
                    yield file.read()
                return
        url = hf_hub_url(**self._repository, filename=self._path(name))
        total = 0
        # Not the hub's cache: it would keep a second copy of every checkpoint on this disk.
        with get_session().stream(
            "GET", url, headers=build_hf_headers(), timeout=_TIMEOUT_SECONDS, follow_redirects=True
        ) as response:
            try:
                hf_raise_for_status(response)
            except EntryNotFoundError as error:
                raise FileNotFoundError(name) from error
            for block in response.iter_bytes(_BLOCK_BYTES):
                total += len(block)
                if total > max_bytes:
                    raise ValueError(f"it has more than {max_bytes} bytes")
                yield block

    def write(self, name: str, blocks: Iterable[bytes]) -> None:
        """Upload an object; with the commit, which is written last, everything is committed there at once."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        # The client reads a file more than once: for its digest, then for its parts.
        file = tempfile.TemporaryFile()  # noqa: SIM115 - open until the commit
        digest = hashlib.sha256()
        for block in blocks:
            digest.update(block)
            file.write(block)
        file.seek(0)
        if not self._written:
            self._api.create_repo(**self._repository, private=True, exist_ok=True)
        self._written.append(CommitOperationAdd(path_in_repo=self._path(name), path_or_fileobj=file))
        self._temporary.append(file)
        if name.startswith("objects/"):
            self._api.preupload_lfs_files(**self._repository, additions=self._written[-1:], free_memory=False)
            return
        operations = [*self._written, *(CommitOperationDelete(path_in_repo=path) for path in self._removed)]
        try:
            self._api.create_commit(**self._repository, operations=operations, commit_message=name)
        finally:
            for temporary in self._temporary:
                temporary.close()
            self._written, self._temporary = [], []
        self._removed = []

    def remove(self, name: str) -> None:
        """Remove a file with the next commit; the hub keeps the history of a repository until it is squashed."""
        self._removed.append(self._path(name))

    def close(self) -> None:
        """Nothing is held."""

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if self._root else name
