"""The file `DIR/kaggle/chain.json`: what a chain of sessions on Kaggle is, and how far it is.

It is written before and after every step, so that a laptop that was killed goes on where it was. It has no credentials.
Times are seconds since 1970 by the clock of this machine, or of Kaggle's server if their names say so.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from shoestring.base.errors import UsageError
from shoestring.base.reading import COUNT, OBJECT, TEXT, Kind, find_problems, read_json, reason
from shoestring.training.checkpoint.files import write_json
from shoestring.training.run_directory.contents import KAGGLE

NAME = "chain.json"
FOLDER = KAGGLE.name
"""The folder in a run's directory."""
FORMAT = 1

ChainStatus = Literal["preparing", "pushing", "running", "fetching", "waiting", "finished", "failed", "stopped"]
SessionStatus = Literal["pushing", "running", "ended", "lost", "refused"]
PackageStatus = Literal["new", "uploading", "ready"]

FINAL = ("finished", "failed", "stopped")
"""The states in which a chain does nothing more."""

_OPTIONAL_TEXT = Kind(name="text or null", types=(str, type(None)))
_OPTIONAL_OBJECT = Kind(name="an object or null", types=(dict, type(None)))
_OPTIONAL_COUNT = Kind(name="a count or null", types=(int, type(None)), low=0, high=2**53)
_SECONDS = Kind(name="a number of seconds", types=(int, float), low=0, high=1e11)
_OPTIONAL_SECONDS = Kind(name="a number of seconds or null", types=(int, float, type(None)), low=0, high=1e11)
_BOOL = Kind(name="true or false", types=(bool,))
_LIST = Kind(name="a list", types=(list,))
_USER = re.compile(r"[A-Za-z0-9_-]{1,60}")
_BASE = re.compile(r"[a-z0-9][a-z0-9-]{0,40}-[0-9a-f]{4,8}")
_NONCE = re.compile(r"[0-9a-f]{32}")


@dataclass(kw_only=True)
class SessionRecord:
    """One session of a chain."""

    number: int
    """The number of the session, from 1."""
    nonce: str
    """32 hexadecimal digits, which stand in the source of its kernel: so a push is recognized."""
    slug: str
    """The kernel's name in the account, without the account."""
    limit_seconds: float
    """The length of the session."""
    status: SessionStatus = "pushing"
    """Whether its kernel is being pushed, runs, has ended, was lost without an output, or was refused by Kaggle."""
    previous: dict[str, str] | None = None
    """`kernel` and `nonce` of the session that it continues from."""
    version: int | None = None
    """The version of the kernel on Kaggle; None before it is known."""
    pushed_at: float | None = None
    """When the push was tried; None before that."""
    started_at: float | None = None
    """When it was first seen running."""
    ended_at: float | None = None
    """When it was first seen not running; None before that."""
    server_started_at: float | None = None
    """When it was first seen running, by the server's clock; None before that, and if the server did not tell."""
    server_ended_at: float | None = None
    """When it was first seen not running, by the server's clock."""
    update: int | None = None
    """The updates that the run had made at its end; None if it left no run."""
    total_updates: int | None = None
    """The updates of the whole run; None if they are not known."""
    checkpoint: str | None = None
    """The newest checkpoint in its output; None if it left none."""
    has_progress: bool = False
    """Whether it came further than every session before it."""
    is_cut_short: bool = False
    """Whether it ended before its limit although its script did not."""
    is_counted: bool = True
    """Whether it counts as a session without progress; not those before a chain was started again."""
    outcome: str | None = None
    """`finished`, `paused`, `failed` or `killed`; None if it is unknown."""
    reason: str = ""
    """Why it has ended."""

    @property
    def is_over(self) -> bool:
        return self.status in ("ended", "lost", "refused")

    @property
    def lived_seconds(self) -> float:
        """How long the session was seen running: by the server's clock, since that of this machine may be set."""
        for start, end in ((self.server_started_at, self.server_ended_at), (self.started_at, self.ended_at)):
            if start is not None and end is not None:
                return max(0.0, end - start)
        return 0.0

    def running_seconds(self, time: float, server_time: float | None) -> float:
        """Return how long the session has run at least: by the clock of this machine and by that of the server, each of
        which may be wrong, or may have been set meanwhile.
        """
        if self.started_at is None or self.server_started_at is None or server_time is None:
            return 0.0
        return max(0.0, min(time - self.started_at, server_time - self.server_started_at))


@dataclass(kw_only=True)
class ChainState:
    """A chain of sessions that trains one run."""

    user: str
    """The account that owns the kernels and the dataset."""
    base: str
    """The beginning of the names on Kaggle."""
    recipe: str
    """The recipe, as `start` was given it."""
    on: str
    """The target of `--on`."""
    limit_seconds: float
    """The longest session."""
    internet: bool = True
    """Whether sessions have internet."""
    allow_cpu: bool = False
    """Whether a session that Kaggle gives no GPU trains on its CPU; otherwise it ends at once."""
    set: dict[str, str] = field(default_factory=dict)
    """The values of `--set`, by key."""
    data: list[str] = field(default_factory=list)
    """The values of `--data`: `owner/slug` or `owner/slug:PATH`."""
    status: ChainStatus = "preparing"
    """What the chain does, or how it has ended: `finished`, `failed` or `stopped`."""
    reason: str = ""
    """Why it has this status."""
    package_digest: str = ""
    """The SHA-256 of the names and contents of the wheels in the dataset; empty before they are built."""
    package_status: PackageStatus = "new"
    """Whether this dataset is there."""
    sessions: list[SessionRecord] = field(default_factory=list)
    """The sessions so far, in their order."""
    waiting_until: str | None = None
    """When something is expected, as Kaggle says it; None if that is unknown."""

    @property
    def package(self) -> str:
        """The name of the dataset with the wheels."""
        return f"{self.user}/{self.base}-wheels"

    def kernel(self, session: SessionRecord) -> str:
        """Return the full name of a session's kernel."""
        return f"{self.user}/{session.slug}"

    @property
    def newest(self) -> SessionRecord | None:
        return self.sessions[-1] if self.sessions else None

    @property
    def newest_output(self) -> SessionRecord | None:
        """The session whose output the next one continues from."""
        usable = [item for item in self.sessions if item.status == "ended" and item.checkpoint and item.has_progress]
        return usable[-1] if usable else None

    def json(self) -> dict[str, Any]:
        """Return the content of the file."""
        return {"format": FORMAT, **dataclasses.asdict(self)}

    def write(self, folder: Path) -> None:
        """Write the file into `folder`. Raises OSError."""
        write_json(folder / NAME, self.json())


_KINDS = {
    **dict.fromkeys(("user", "base", "recipe", "on", "status", "reason", "package_digest", "package_status"), TEXT),
    "format": COUNT,
    "limit_seconds": _SECONDS,
    **dict.fromkeys(("internet", "allow_cpu"), _BOOL),
    "set": OBJECT,
    "data": _LIST,
    "sessions": _LIST,
    "waiting_until": _OPTIONAL_TEXT,
}
_TIMES = ("pushed_at", "started_at", "ended_at", "server_started_at", "server_ended_at")
_SESSION_KINDS = {
    **dict.fromkeys(("nonce", "slug", "status", "reason"), TEXT),
    **dict.fromkeys(("version", "update", "total_updates"), _OPTIONAL_COUNT),
    **dict.fromkeys(_TIMES, _OPTIONAL_SECONDS),
    **dict.fromkeys(("checkpoint", "outcome"), _OPTIONAL_TEXT),
    "number": COUNT,
    "limit_seconds": _SECONDS,
    "previous": _OPTIONAL_OBJECT,
    "has_progress": _BOOL,
    "is_counted": _BOOL,
    "is_cut_short": _BOOL,
}


def read_chain(folder: Path) -> ChainState | None:
    """Return the chain of the folder `DIR/kaggle`; None if there is none.

    Raises UsageError if the file cannot be read or is not such a file.
    """
    file = folder / NAME
    try:
        value = read_json(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _damaged(file, [reason(error)]) from error
    if not isinstance(value, dict):
        raise _damaged(file, ["it is no JSON object"])
    if value.get("format") != FORMAT:
        raise _damaged(file, [f"its format is {str(value.get('format'))[:20]}, but this version reads {FORMAT}"])
    problems = _problems(value, _KINDS, ChainState)
    if problems:
        raise _damaged(file, problems)
    for name, choices in (("status", ChainStatus), ("package_status", PackageStatus)):
        if name in value and value[name] not in get_args(choices):
            problems.append(f"{name}: {value[name][:40]!r} is none of {', '.join(get_args(choices))}")
    texts = [*value.get("set", {}).values(), *value.get("data", [])]
    if not all(isinstance(text, str) for text in texts):
        problems.append("set, data: not texts")
    for entry in value["sessions"]:
        problems += ["sessions: not objects"] if not isinstance(entry, dict) else _session_problems(entry)
    if problems:
        raise _damaged(file, problems[:10])
    sessions = [SessionRecord(**entry) for entry in value.pop("sessions")]
    state = ChainState(**{name: item for name, item in value.items() if name != "format"}, sessions=sessions)
    if problems := list(_name_problems(state)):
        raise _damaged(file, problems[:10])
    return state


def _name_problems(state: ChainState) -> Iterator[str]:
    """Yield a problem for each name on Kaggle that no chain has: a chain deletes kernels, and the file may come from
    someone else, who must not be able to name a kernel of the user's."""
    for name, text, pattern in (("user", state.user, _USER), ("base", state.base, _BASE)):
        if not pattern.fullmatch(text):
            yield f"{name}: {text[:60]!r} is no name that a chain has"
    slugs = (f"{state.base}-a", f"{state.base}-b")
    kernels = {f"{state.user}/{slug}" for slug in slugs}
    for session in state.sessions:
        if session.slug not in slugs:
            yield f"sessions: slug: {session.slug[:60]!r} is none of {', '.join(slugs)}"
        if session.previous and session.previous["kernel"] not in kernels:
            yield f"sessions: previous: {session.previous['kernel'][:60]!r} is no kernel of this chain"
        nonces = [session.nonce, *([session.previous["nonce"]] if session.previous else [])]
        if not all(_NONCE.fullmatch(nonce) for nonce in nonces):
            yield "sessions: nonce: not 32 hexadecimal digits"


def _session_problems(entry: Mapping[str, Any]) -> list[str]:
    problems = _problems(entry, _SESSION_KINDS, SessionRecord)
    if not problems and entry.get("status", "pushing") not in get_args(SessionStatus):
        problems.append(f"status: {entry['status'][:40]!r} is none of {', '.join(get_args(SessionStatus))}")
    previous = entry.get("previous")
    if not problems and previous and not all(isinstance(previous.get(name), str) for name in ("kernel", "nonce")):
        problems.append("previous: without kernel and nonce")
    return [f"sessions: {problem}" for problem in problems]


def _problems(value: Mapping[str, Any], kinds: Mapping[str, Kind], record: type[Any]) -> list[str]:
    required = [
        item.name
        for item in dataclasses.fields(record)
        if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
    ]
    problems = [
        f"{name} is missing"
        for name in [*required, *(["sessions"] if record is ChainState else [])]
        if name not in value
    ]
    problems += [f"{str(name)[:40]!r} is unknown" for name in value if name not in kinds]
    return problems + find_problems(value, kinds)


def _damaged(file: Path, problems: list[str]) -> UsageError:
    return UsageError(
        f"{file} cannot be used",
        problems=problems,
        hint="it says what runs on Kaggle: restore it, or stop the kernels on www.kaggle.com and use another --run",
    )


def session_file(folder: Path, session: SessionRecord) -> Path:
    """Return the path of what a session left about itself."""
    return folder / f"session-{session.number:03d}.json"
