"""A commit: the files of one copy with their sizes and digests. It is written last, and only what it lists is a copy.

    {"format": 1, "run": "<32 hex>", "update": 1200, "time": 1790000000.0, "shoestring": "0.2.0",
     "files": {"plan.json": {"bytes": 8008, "sha256": "9f86..."}, ...}, "sha256": "..."}

Its name has its number, its update and the writer: `00000007-update-00001200-1f2e3d4c.json`. Numbers grow, so the
newest commit is the one with the largest number, also if a run has gone back to an earlier update.
"""

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shoestring.base.reading import COUNT, MAX_COUNT, OBJECT, TEXT, find_problems, parse_json
from shoestring.base.units import MIB
from shoestring.training.checkpoint.files import json_text, matches_digest, with_digest
from shoestring.training.checkpoint.manifest import MANIFEST, FileEntry
from shoestring.training.checkpoint.names import update_name, update_of
from shoestring.training.run_directory.contents import BY_NAME, CHECKPOINTS, PLAN
from shoestring.version import __version__

FORMAT = 1
COMMITS = "commits"
OBJECTS = "objects"
MAX_COMMIT_BYTES = 8 * MIB
MAX_FILES = 10_000

_NAME = re.compile(r"(?P<number>[0-9]{8,18})-(?P<update>update-[0-9]{8,18})-(?P<writer>[0-9a-f]{8})\.json")
_RUN = re.compile(r"[0-9a-f]{32}")
_KINDS = {"run": TEXT, "update": COUNT, "files": OBJECT}


@dataclass(frozen=True, order=True)
class CommitName:
    """What the name of a commit says; commits are ordered by their numbers."""

    number: int
    update: int
    writer: str

    def __str__(self) -> str:
        return f"{self.number:08d}-{update_name(self.update)}-{self.writer}.json"

    @property
    def path(self) -> str:
        """The name in the store."""
        return f"{COMMITS}/{self}"


@dataclass(frozen=True, kw_only=True)
class Commit:
    """The files of one copy of a run."""

    run: str
    """The id of the run, 32 hexadecimal digits."""
    update: int
    files: Mapping[str, FileEntry]
    """By path in the run's directory."""

    def text(self) -> str:
        """Return the content of the commit's file."""
        files = {path: {"bytes": entry.bytes, "sha256": entry.sha256} for path, entry in sorted(self.files.items())}
        value = {"run": self.run, "update": self.update, "time": time.time(), "shoestring": __version__, "files": files}
        return json_text(with_digest({"format": FORMAT, **value}))

    @property
    def bytes(self) -> int:
        """The total size of the files."""
        return sum(entry.bytes for entry in self.files.values())


def names_of(names: Iterable[str]) -> list[CommitName]:
    """Return the commits among the names of files, the newest first."""
    commits = []
    for name in names:
        if (match := _NAME.fullmatch(name)) and (update := update_of(match["update"])) is not None:
            commits.append(CommitName(int(match["number"]), update, match["writer"]))
    return sorted(commits, reverse=True)


def parse_commit(text: bytes, name: CommitName) -> Commit:
    """Return the commit whose file has this content. Raises ValueError with the problem."""
    value = parse_json(text)
    if not isinstance(value, dict) or not matches_digest(value):
        raise ValueError("its digest does not match its content")
    if value.get("format") != FORMAT:
        raise ValueError(f"it has format {str(value.get('format'))[:20]}, but this version reads format {FORMAT}")
    problems = [f"{key} is missing" for key in _KINDS if key not in value] + find_problems(value, _KINDS)
    if problems:
        raise ValueError("; ".join(problems))
    if not _RUN.fullmatch(value["run"]) or value["update"] != name.update:
        raise ValueError("its run or its update is not the one of its name")
    files = _parse_files(value["files"])
    if PLAN.name not in files or not any(is_of_checkpoint(path, name.update) for path in files):
        raise ValueError("it lists no plan.json or no checkpoint")
    return Commit(run=value["run"], update=value["update"], files=files)


def is_of_checkpoint(path: str, update: int) -> bool:
    """Return whether a path is the manifest of the checkpoint of `update`."""
    return path == f"{CHECKPOINTS.name}/{update_name(update)}/{MANIFEST}"


def _parse_files(value: Mapping[str, Any]) -> dict[str, FileEntry]:
    if len(value) > MAX_FILES:
        raise ValueError(f"it lists {len(value)} files, but at most {MAX_FILES} are read")
    files = {}
    for path, entry in value.items():
        _require_path(path)
        if not isinstance(entry, dict) or entry.keys() != {"bytes", "sha256"}:
            raise ValueError(f"the entry of {path!r:.60} is not bytes and sha256")
        files[path] = FileEntry(**entry)
    folders = {parent for path in files for parent in _parents(path)}
    if both := sorted(folders & files.keys()):
        raise ValueError(f"{both[0]!r:.60} is a file and a folder")
    if sum(entry.bytes for entry in files.values()) > MAX_COUNT:
        raise ValueError("its files are too large")
    return files


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def _require_path(path: str) -> None:
    """Raise ValueError unless `path` is that of a file that is copied, and stays in the run's directory."""
    parts = path.split("/")
    is_plain = all(part and not part.startswith(".") and len(part.encode()) <= 255 for part in parts)
    is_plain = is_plain and path.isprintable() and "\\" not in path and len(parts) <= 8
    entry = BY_NAME.get(parts[0])
    is_copied = entry is not None and entry.backup == "all" and entry.is_folder == (len(parts) > 1)
    is_checkpoint = parts[0] == CHECKPOINTS.name and len(parts) == 3 and update_of(parts[1]) is not None
    if not (is_plain and (is_copied or is_checkpoint)):
        raise ValueError(f"{path!r:.80} is not the path of a file of a run")
