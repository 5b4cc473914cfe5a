"""Copies in two private datasets of Kaggle, NAME-a and NAME-b, in turn: each version of one is a complete copy.

A version has all its files: Kaggle has no incremental upload. It cannot be read while Kaggle processes it, which takes
minutes, and an upload can lose a file without an error. So the version that replaces an older one is never in the
dataset that has the newest complete copy.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from shoestring.base.errors import RunError
from shoestring.base.reading import read_blocks, read_bytes
from shoestring.remote.backup.commits import COMMITS, MAX_COMMIT_BYTES, OBJECTS, CommitName, names_of, parse_commit
from shoestring.remote.kaggle.client import Client, KaggleError
from shoestring.remote.kaggle.upload import dataset_metadata, difference
from shoestring.remote.temporary import temporary_folder
from shoestring.training.checkpoint.files import write_file

_OBJECT = re.compile(r"[0-9a-f]{64}")
_PROCESSING_SECONDS = 1800.0
"""How long Kaggle may take to process a version before it is uploaded again."""
_LONGEST_PAUSE_SECONDS = 15.0
_INCOMPLETE_POLLS = 10
"""How often a version that is ready is looked at before files that are missing count as lost."""


class KaggleStore:
    """A place for the copies of one run. What is sent waits in a temporary folder until the commit that lists it."""

    def __init__(
        self,
        path: str,
        *,
        client: Client | None = None,
        on_block: Callable[[int], object] = lambda _: None,
        pause_seconds: float = 1.0,
    ) -> None:
        """`path` is `NAME` or `USER/NAME`. `on_block` is called with 0 as a sign of progress: a file moves, or Kaggle
        still processes a version. Raises KaggleError if nobody is signed in.
        """
        self._folder = temporary_folder("backup")
        self._client = client or Client(on_progress=on_block)
        self._on_block, self._pause_seconds = on_block, pause_seconds
        user, _, name = path.rpartition("/")
        try:
            user = user or self._client.account()
        except BaseException:
            self.close()
            raise
        self._datasets = (f"{user}/{name}-a", f"{user}/{name}-b")
        self._listed: dict[str, dict[str, int]] = {}
        """The files of each dataset by their names, as they were listed last."""
        self._read_from = self._datasets[0]
        """The dataset of the commit that was read last: its objects are there too."""
        self._written_to: str | None = None
        """The dataset of this process's last copy, which is not replaced if neither seems to be complete."""
        self._commits: dict[str, bytes] = {}
        """The content of commits that were read: a commit does not change."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the commits that Kaggle has, or the objects that the next version would have."""
        if folder == OBJECTS:
            return {path.name: path.stat().st_size for path in self._folder.iterdir() if _OBJECT.fullmatch(path.name)}
        self._list()
        return {name: size for files in self._listed.values() for name, size in files.items() if names_of([name])}

    def blocks(self, name: str, max_bytes: int) -> Iterator[bytes]:
        folder, _, file = name.partition("/")
        path = self._folder / file
        if folder == OBJECTS and path.exists():
            yield from read_blocks(path, follow=False)
            return
        dataset = self._dataset_of(file)
        if folder == COMMITS:
            self._read_from = dataset
            yield self._commit_text(dataset, file)
            return
        yield from self._downloaded(dataset, file, max_bytes)

    def write(self, name: str, blocks: Iterable[bytes]) -> None:
        """Keep an object for the next version; with the commit, upload the version and wait until Kaggle has it."""
        folder, _, file = name.partition("/")
        path = self._folder / file
        unfinished = self._folder / f"{file}.unfinished"
        try:
            write_file(unfinished, blocks)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        if folder == COMMITS:
            try:
                self._upload(path)
            finally:
                path.unlink()

    def remove(self, name: str) -> None:
        """Leave an object out of the next version. The next version replaces commits."""
        (self._folder / name.partition("/")[2]).unlink(missing_ok=True)

    def close(self) -> None:
        """End the client and remove the temporary folder."""
        self._client.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _upload(self, commit_file: Path) -> None:
        """Upload a commit with its objects as the next version. Raises RunError if Kaggle does not have all of it."""
        name = names_of([commit_file.name])[0]
        commit = parse_commit(read_bytes(commit_file, follow=False, max_bytes=MAX_COMMIT_BYTES), name)
        digests = {entry.sha256 for entry in commit.files.values()}
        for path in self._folder.iterdir():
            if _OBJECT.fullmatch(path.name) and path.name not in digests:
                path.unlink()  # only the newest copy takes disk space here
        sizes = {file: (self._folder / file).stat().st_size for file in (commit_file.name, *digests)}
        dataset = self._next_dataset()
        metadata_file = self._folder / "dataset-metadata.json"
        metadata_file.write_text(json.dumps(dataset_metadata(dataset)), encoding="utf-8")
        try:
            if self._client.dataset_status(dataset) is None:
                self._client.create_dataset(self._folder)
            else:
                self._client.create_version(self._folder, "Shoestring", delete_old_versions=True)
        finally:
            metadata_file.unlink()
        self._wait_for(dataset, sizes)
        self._written_to = dataset

    def _wait_for(self, dataset: str, sizes: dict[str, int]) -> None:
        end, pause = time.monotonic() + _PROCESSING_SECONDS, self._pause_seconds
        polls, problem = 0, ""
        while polls < _INCOMPLETE_POLLS and time.monotonic() < end:
            self._on_block(0)
            status = self._client.dataset_status(dataset)
            problem = difference(self._client, dataset, sizes) if status == "ready" else f"its status is {status}"
            if not problem:
                self._list()
                return
            polls += status == "ready"
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_PAUSE_SECONDS)
        raise RunError(f"{dataset} is not complete on Kaggle: {problem}", hint="the copy is made again")

    def _next_dataset(self) -> str:
        """Return the dataset whose newest complete copy is older, or that has none."""
        self._list()
        numbers = {dataset: self._newest_complete(dataset) for dataset in self._datasets}
        return min(self._datasets, key=lambda dataset: (numbers[dataset], dataset == self._written_to))

    def _newest_complete(self, dataset: str) -> int:
        """Return the number of a dataset's newest commit whose files are all there; -1 if there is none."""
        for name in names_of(self._listed[dataset]):
            if self._is_complete(name, dataset):
                return name.number
        return -1

    def _is_complete(self, name: CommitName, dataset: str) -> bool:
        try:
            commit = parse_commit(self._commit_text(dataset, str(name)), name)
        except (ValueError, FileNotFoundError):
            return False
        files = self._listed[dataset]
        return all(files.get(entry.sha256) == entry.bytes for entry in commit.files.values())

    def _commit_text(self, dataset: str, file: str) -> bytes:
        if file in self._commits:
            return self._commits[file]
        text = b"".join(self._downloaded(dataset, file, MAX_COMMIT_BYTES))
        if len(text) == self._listed[dataset][file]:  # an answer that was cut is asked for again
            self._commits[file] = text
        return text

    def _downloaded(self, dataset: str, file: str, max_bytes: int) -> Iterator[bytes]:
        if self._listed[dataset][file] > max_bytes:
            raise ValueError(f"it has more than {max_bytes} bytes")
        path = self._folder / f"{file}.download"
        try:
            self._client.download_dataset_file(dataset, file, path, max_bytes=max_bytes)
            yield from read_blocks(path, follow=False)
        finally:
            path.unlink(missing_ok=True)

    def _list(self) -> None:
        """List the files of both datasets. Raises KaggleError if one is there and cannot be listed now."""
        listed = {}
        for dataset in self._datasets:
            files = self._client.dataset_files(dataset)
            if files is None and self._client.dataset_status(dataset) is not None:
                raise KaggleError(f"the files of {dataset} cannot be listed now", "temporary")
            listed[dataset] = {str(file["name"]): int(file["bytes"] or 0) for file in files or []}
        self._listed = listed

    def _dataset_of(self, file: str) -> str:
        """Return the dataset that has a file. Raises FileNotFoundError if none has it."""
        if not self._listed:
            self._list()
        for dataset in (self._read_from, *self._datasets):
            if file in self._listed[dataset]:
                return dataset
        raise FileNotFoundError(file)
