"""The runs of a comparison: each with a name, a color and its sessions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoestring.answers.document import Color
from shoestring.answers.report.run import Run, read
from shoestring.base.errors import UsageError
from shoestring.base.reading import real_path
from shoestring.training.monitor.events import Event
from shoestring.training.session.ledger import SessionRecord, sessions

_COLORS: tuple[Color, ...] = ("blue", "vermillion", "green", "purple", "orange", "sky")
_LINES = ("-", "--", ":", "-.")


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """A run of a comparison."""

    name: str
    """The end of its path that distinguishes it from the others."""
    run: Run
    sessions: list[SessionRecord]
    color: Color
    line: str
    """The style of its lines: more runs than colors differ by it."""

    @property
    def seconds(self) -> float:
        """The sum over its sessions."""
        return sum(session.seconds for session in self.sessions)

    def elapsed(self, event: Event) -> float:
        """Return the seconds of all sessions up to an event; the time between sessions does not count."""
        earlier = [session for session in self.sessions if session.number < event["session"]]
        start = next((session.start for session in self.sessions if session.number == event["session"]), event["time"])
        return sum(session.seconds for session in earlier) + max(0.0, float(event["time"] - start))


def read_runs(paths: Sequence[Path]) -> list[ComparedRun]:
    """Read the runs in these directories.

    Raises UsageError when one of them is not the directory of a run, or is given twice.
    """
    runs = [read(path) for path in paths]
    places = [real_path(path) for path in paths]
    repeated = [str(path) for index, path in enumerate(paths) if places[index] in places[:index]]
    if repeated:
        raise UsageError(
            f"the same run is given twice: {', '.join(repeated)}", hint="give each directory once, or only one of them"
        )
    return [
        ComparedRun(
            name=name,
            run=run,
            sessions=sessions(run.events, run.status),
            color=_COLORS[index % len(_COLORS)],
            line=_LINES[index // len(_COLORS) % len(_LINES)],
        )
        for index, (name, run) in enumerate(zip(short_names(places), runs, strict=True))
    ]


def short_names(places: Iterable[Path]) -> list[str]:
    """Return the shortest end of each of these different paths that no other one has."""
    parts = [place.parts for place in places]

    def name(path: tuple[str, ...]) -> str:
        for length in range(1, len(path)):
            if sum(other[-length:] == path[-length:] for other in parts) == 1:
                return "/".join(path[-length:])
        return str(Path(*path))

    return [name(path) for path in parts]
