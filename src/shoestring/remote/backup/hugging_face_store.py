"""Copies in a repository of the Hugging Face hub: of a model, or with `datasets/` of a dataset. A copy is a commit.

The content of an object is uploaded when it is written; it becomes a file of the repository with the commit that lists
it. The client gets open files, not paths: it uploads these by HTTP (git LFS), also where `hf_xet` is installed, and a
killed process leaves none of them on the disk.
"""

import io
import logging
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from shoestring.remote.backup.commits import COMMITS

_BLOCK_BYTES = 8 << 20
_TIMEOUT_SECONDS = 60
_DOWNLOAD_WAITS = (1.0, 4.0, 15.0)
"""Seconds before an interrupted download is continued."""
_MISSING_STATUS = 404


class HuggingFaceStore:
    """Files below a folder of a repository, which is created as a private one if it does not exist."""

    def __init__(self, path: str, *, on_block: Callable[[int], object] = lambda _size: None) -> None:
        """`path` is `[datasets/]USER/REPO[/FOLDER]`. The token is read as the hub's own client does.

        `on_block` receives the size of each part of a file that the client has read to upload it.
        """
        from huggingface_hub import HfApi
        from huggingface_hub.utils.logging import set_verbosity
        from huggingface_hub.utils.tqdm import disable_progress_bars

        # The terminal is that of training, and messages on requests that are tried again have URLs with signatures.
        disable_progress_bars()
        set_verbosity(logging.ERROR)
        kind = "dataset" if path.startswith("datasets/") else "model"
        user, name, *folders = path.removeprefix("datasets/").removeprefix("models/").split("/")
        self._api = HfApi()
        self._repository: dict[str, Any] = {"repo_id": f"{user}/{name}", "repo_type": kind}
        self._root = "/".join(folders)
        self._on_block = on_block
        self._exists = False
        """Whether the repository is known to exist."""
        self._additions: dict[str, Any] = {}
        """What the next commit adds, by name."""
        self._files: list[_ReportingFile] = []
        """Those that are read when the commit is made, which are small."""
        self._removed: set[str] = set()
        """The names that the next commit removes."""

    def sizes(self, folder: str) -> dict[str, int]:
        with _explained():
            sizes = {f"{folder}/{name}": size for name, size in self._committed_sizes(folder).items()}
        for name, addition in self._additions.items():
            if name.startswith(f"{folder}/"):
                sizes[name] = addition.upload_info.size
        return {name.rpartition("/")[2]: size for name, size in sizes.items() if name not in self._removed}

    def blocks(self, name: str, max_bytes: int) -> Iterator[bytes]:
        total = 0
        with _explained():
            for block in self._downloaded(name):
                total += len(block)
                if total > max_bytes:
                    raise ValueError(f"it has more than {max_bytes} bytes")
                yield block

    def write(self, name: str, blocks: Iterable[bytes]) -> None:
        """Upload an object; with a commit, everything that was written since the last one becomes part of the copies.

        If it fails, nothing of that does. The caller writes it again; the hub does not receive again what it has.
        """
        try:
            with _explained():
                self._create_repository()
                self._add(name, blocks)
                if name.startswith(f"{COMMITS}/"):
                    self._commit(name)
        except BaseException:
            self._forget()
            raise

    def remove(self, name: str) -> None:
        """Remove a file with the next commit; the hub keeps the history of a repository until it is squashed."""
        self._removed.add(name)

    def close(self) -> None:
        self._forget()

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if self._root else name

    def _committed_sizes(self, folder: str) -> dict[str, int]:
        from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError
        from huggingface_hub.hf_api import RepoFile

        try:
            entries = list(self._api.list_repo_tree(**self._repository, path_in_repo=self._path(folder)))
        except RepositoryNotFoundError as error:
            if _status(error) != _MISSING_STATUS:  # the client raises it for 401 too: there is no token
                raise
            return {}
        except EntryNotFoundError:
            entries = []
        self._exists = True
        return {entry.path.rpartition("/")[2]: entry.size for entry in entries if isinstance(entry, RepoFile)}

    def _downloaded(self, name: str) -> Iterator[bytes]:
        """Yield the content of a file; a download that is interrupted is continued where it was."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

        url = hf_hub_url(**self._repository, filename=self._path(name), endpoint=self._api.endpoint)
        offset = 0
        for wait in (*_DOWNLOAD_WAITS, None):
            try:
                for block in _download(url, offset):
                    offset += len(block)
                    yield block
            except (EntryNotFoundError, RepositoryNotFoundError) as error:
                if _status(error) != _MISSING_STATUS:
                    raise
                raise FileNotFoundError(name) from error
            except Exception as error:
                if wait is None or not _is_transient(error):
                    raise
                time.sleep(wait)
            else:
                return

    def _create_repository(self) -> None:
        if not self._exists:
            self._api.create_repo(**self._repository, private=True, exist_ok=True)
            self._exists = True

    def _add(self, name: str, blocks: Iterable[bytes]) -> None:
        """Upload a file for the next commit."""
        from huggingface_hub import CommitOperationAdd

        # The client reads a file more than once: for its digest, then for its parts, and again if an upload fails.
        file = _ReportingFile(self._on_block)
        self._files.append(file)
        for block in blocks:
            file.write(block)
        file.seek(0)
        addition = CommitOperationAdd(path_in_repo=self._path(name), path_or_fileobj=file)
        # The hub decides whether a file is uploaded, or small text, which the request of the commit contains. The
        # client gives back the file that it has uploaded.
        self._api.preupload_lfs_files(**self._repository, additions=[addition], free_memory=True)
        if addition.path_or_fileobj is not file:
            self._files.remove(file)
            file.close()
        self._additions[name] = addition
        self._removed.discard(name)

    def _commit(self, message: str) -> None:
        from huggingface_hub import CommitOperationDelete

        removals = [CommitOperationDelete(path_in_repo=self._path(name)) for name in sorted(self._removed)]
        self._api.create_commit(
            **self._repository, operations=[*self._additions.values(), *removals], commit_message=message
        )
        self._forget()

    def _forget(self) -> None:
        """Begin the next commit.

        Also after one that has failed: it may have been made all the same, and then the hub refuses to remove its
        files a second time. The next copy finds what is there, and what has to be removed.
        """
        for file in self._files:
            file.close()
        self._files, self._additions, self._removed = [], {}, set()


class _ReportingFile(io.BufferedRandom):
    """A temporary file that reports what is read from it: an upload may take long, and has no other sign of progress.

    It has no name, so it is gone with its process.
    """

    def __init__(self, on_block: Callable[[int], object]) -> None:
        super().__init__(tempfile.TemporaryFile(buffering=0))  # noqa: SIM115 - closed with this file
        self._on_block = on_block

    def read(self, size: int | None = -1, /) -> bytes:
        block = super().read(size)
        self._on_block(len(block))
        return block


def _download(url: str, offset: int) -> Iterator[bytes]:
    """Yield the content of a file from `offset` on. Not by the hub's cache: it would keep each file on this disk."""
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status  # type: ignore[attr-defined]

    headers = build_hf_headers() | ({"Range": f"bytes={offset}-"} if offset else {})
    session: Any = get_session()
    is_httpx = callable(getattr(session, "stream", None))  # since version 1.0 of the client; requests before
    if is_httpx:
        opened = session.stream("GET", url, headers=headers, timeout=_TIMEOUT_SECONDS, follow_redirects=True)
    else:
        opened = session.get(url, headers=headers, timeout=_TIMEOUT_SECONDS, stream=True)
    with opened as response:
        hf_raise_for_status(response)
        if offset and response.status_code != 206:
            raise ConnectionError("an interrupted download cannot be continued")
        yield from response.iter_bytes(_BLOCK_BYTES) if is_httpx else response.iter_content(_BLOCK_BYTES)


@contextmanager
def _explained() -> Iterator[None]:
    """Raise errors of the client as one line that has the cause, and what to do if it is the token."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except (HfHubHTTPError, RuntimeError) as error:
        # An upload fails with a RuntimeError that only says for which file.
        cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error
        text = " ".join(str(cause).split())
        status = _status(cause)
        if status == 401 and not get_token():
            raise PermissionError("the hub needs a token: set HF_TOKEN, or type hf auth login") from error
        if status == 401:
            raise PermissionError("the hub does not accept the token: check HF_TOKEN, or type hf auth login") from error
        if status == 403:
            raise PermissionError(f"the hub's token must be allowed to write to the repository: {text}") from error
        if cause is error and isinstance(error, RuntimeError):
            raise
        raise ConnectionError(text) from error


def _status(error: BaseException) -> int | None:
    """Return the status of the answer that an error of the client is about; None if there was no answer."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def _is_transient(error: Exception) -> bool:
    status = _status(error)
    is_of_network = status is None and not isinstance(error, MemoryError | TypeError | ValueError | AttributeError)
    return is_of_network or status == 429 or (status is not None and status >= 500)
