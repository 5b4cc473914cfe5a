"""The file `shoestring-session.json`, in which a session on Kaggle says what has become of it; read on the laptop."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, cast, get_args

from shoestring.base.errors import CheckpointError
from shoestring.base.reading import COUNT, OBJECT, TEXT, Kind, find_problems, is_count, parse_json, read_bytes, reason
from shoestring.base.units import MIB
from shoestring.remote.kaggle.kernel.program.output import MAX_FILES
from shoestring.remote.kaggle.kernel.program.places import SESSION_FILE

NAME = SESSION_FILE
MAX_BYTES = MIB

Status = Literal["running", "finished", "paused", "failed"]

_DIGEST = re.compile(r"[0-9a-f]{64}")
_NONCE = re.compile(r"[0-9a-f]{32}")
_MAX_TEXT = 20_000
_LIST = Kind(name="a list", types=(list,))
_SECONDS = Kind(name="a number of seconds", types=(int, float), low=0, high=1e9)
_OPTIONAL_TEXT = Kind(name="text or null", types=(str, type(None)))
_OPTIONAL_COUNT = Kind(name="a count or null", types=(int, type(None)), low=0, high=2**53)
_KINDS = {
    "format": COUNT,
    "nonce": TEXT,
    "session": COUNT,
    "status": TEXT,
    "reason": TEXT,
    "hint": TEXT,
    "update": COUNT,
    "total_updates": _OPTIONAL_COUNT,
    "first_update": COUNT,
    "checkpoint": _OPTIONAL_TEXT,
    "damaged": _LIST,
    "notes": _LIST,
    "exit_status": _OPTIONAL_COUNT,
    "seconds": _SECONDS,
    "facts": OBJECT,
    "files": OBJECT,
}
_REQUIRED = ("format", "nonce", "session", "status")


@dataclass(frozen=True, kw_only=True)
class OutputFile:
    """A file of the output."""

    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class SessionFile:
    """What a session left."""

    nonce: str
    session: int
    status: Status
    """`running` only if the session was killed."""
    reason: str = ""
    hint: str = ""
    update: int = 0
    """The update of the newest checkpoint."""
    total_updates: int | None = None
    first_update: int = 0
    """The update at which the session began."""
    checkpoint: str | None = None
    damaged: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What was left out of the output, and why."""
    exit_status: int | None = None
    """Of a training that failed by itself; None if it did not, or a signal ended it."""
    seconds: float = 0.0
    facts: Mapping[str, Any]
    files: Mapping[str, OutputFile]
    """All files of the output but this one, by their path."""


def read_session_file(path: Path) -> SessionFile:
    """Return the content of a downloaded `shoestring-session.json`.

    Raises CheckpointError if it cannot be read or is not such a file, for example because an error page was saved.
    """
    try:
        return parse_session_file(read_bytes(path, follow=False, max_bytes=MAX_BYTES))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be used: {reason(error)}", hint="download the output of the session again"
        ) from error


def parse_session_file(content: str | bytes) -> SessionFile:
    """Return the session file with this content. Raises ValueError with all problems."""
    value = parse_json(content)
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    problems = [f"{name} is missing" for name in _REQUIRED if name not in value]
    problems += find_problems(value, _KINDS)
    if problems:
        raise ValueError("; ".join(problems))
    if value["format"] != 1:
        raise ValueError(f"its format is {value['format']}, but this version of Shoestring reads 1")
    if not _NONCE.fullmatch(value["nonce"]):
        problems.append(f"nonce: {value['nonce'][:40]!r} is not 32 hexadecimal digits")
    if value["status"] not in get_args(Status):
        problems.append(f"status: {value['status'][:40]!r} is none of {', '.join(get_args(Status))}")
    for name in ("damaged", "notes"):
        if not all(isinstance(text, str) and len(text) <= _MAX_TEXT for text in value.get(name, [])):
            problems.append(f"{name}: not a list of texts")
    problems += [
        f"{name}: longer than {_MAX_TEXT:,} characters"
        for name in ("reason", "hint", "checkpoint")
        if len(value.get(name) or "") > _MAX_TEXT
    ]
    files = value.get("files", {})
    if len(files) > MAX_FILES:
        problems.append(f"files: {len(files):,}, but a session leaves at most {MAX_FILES}")
    problems += [f"files: {path[:80]!r}: {problem}" for path in files if (problem := _file_problem(path, files[path]))]
    if problems:
        raise ValueError("; ".join(problems[:10]))
    return SessionFile(
        nonce=value["nonce"],
        session=value["session"],
        status=cast(Status, value["status"]),
        reason=value.get("reason", ""),
        hint=value.get("hint", ""),
        update=value.get("update", 0),
        total_updates=value.get("total_updates"),
        first_update=value.get("first_update", 0),
        checkpoint=value.get("checkpoint"),
        damaged=tuple(value.get("damaged", ())),
        notes=tuple(value.get("notes", ())),
        exit_status=value.get("exit_status"),
        seconds=float(value.get("seconds", 0)),
        facts=value.get("facts", {}),
        files={path: OutputFile(bytes=entry["bytes"], sha256=entry["sha256"]) for path, entry in files.items()},
    )


def _file_problem(path: str, entry: object) -> str | None:
    """Return why an entry of the list of files cannot be used: its path might lead out of the folder."""
    parts = PurePosixPath(path).parts
    if not path.isprintable() or PurePosixPath(path).as_posix() != path:
        return "it is not a plain relative path"
    if not parts or len(path) > 1000 or path.startswith("/") or ".." in parts or "\\" in path or "\0" in path:
        return "not a path below the output"
    if not isinstance(entry, dict) or not is_count(entry.get("bytes")):
        return "without its size"
    digest = entry.get("sha256")
    return None if isinstance(digest, str) and _DIGEST.fullmatch(digest) else "without its SHA-256"
