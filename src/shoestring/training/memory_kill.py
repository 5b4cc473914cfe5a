"""A session that the kernel ended because host memory was full: it leaves no `stop` event, and the same update would
end the next session too. So the next one begins with half the microbatch.

The kernel counts the processes that it has ended, but not which ones. On a machine where others fill the memory, a run
that somebody has killed looks the same, and half the microbatch would only change its bits. The kernel ends the process
that uses most, so a run that used little is suspected only after two sessions that ended so at the same update.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from shoestring.base.units import bytes_text
from shoestring.techniques.fallbacks import halved
from shoestring.training.engine.recovery import OutOfMemory
from shoestring.training.engine.state import State
from shoestring.training.monitor.events import Event
from shoestring.training.monitor.host_memory import HostMemory

_SMALL_SHARE = 0.1
"""A run whose processes used a smaller share of the limit used little."""


@dataclass(frozen=True, kw_only=True)
class MemoryKill:
    """The end of an earlier session by the kernel."""

    session: int
    micro_batch: int
    """The microbatch with which that session began."""
    evidence: str
    limit_bytes: int

    @property
    def text(self) -> str:
        return f"session {self.session} ended without a word: {self.evidence}"

    def shrunk(self, state: State) -> OutOfMemory | None:
        """Set half the microbatch in the sizes of `state`; return the event, or None if it is that small already."""
        smaller = halved(self.micro_batch, state.limits().least_micro_batch)
        if smaller >= state.sizes.micro_batch:
            return None
        state.sizes = replace(state.sizes, micro_batch=smaller)
        return OutOfMemory(failure=self.text, micro_batch=self.micro_batch, action=f"microbatch {smaller}")

    def note(self, state: State) -> str:
        """Return the note for the user, after `shrunk`."""
        if state.sizes.micro_batch > state.limits().least_micro_batch or state.sizes.micro_batch < self.micro_batch:
            return f"{self.text}; this session begins with microbatch {state.sizes.micro_batch}, to need less memory"
        return (
            f"{self.text}; microbatch {state.sizes.micro_batch} is the smallest, so only other changes help with the "
            f"limit of {bytes_text(self.limit_bytes)}: no data-loading processes (workers=0), no copy of the inputs "
            "(stage=no), data that is read when needed instead of at once, or a machine with more memory"
        )


def find_memory_kill(events: Iterable[Event], memory: HostMemory) -> MemoryKill | None:
    """Return how the kernel ended the last session of `events`; None if it ended in another way.

    `memory` is measured now. The evidence is the kernel's count of ended processes, if it is still that of the same
    control group. Otherwise the last measured memory of that session decides.
    """
    before_last, last = _last_two_sessions(events)
    kill = _kill_of_session(last, memory)
    if kill is None or not _used_little(last):
        return kill
    opening = _opening(last)
    at_its_end = HostMemory.from_event(opening) if opening else None
    repeats = at_its_end is not None and _kill_of_session(before_last, at_its_end) is not None
    return kill if repeats and _first_update(before_last) == _first_update(last) else None


def _last_two_sessions(events: Iterable[Event]) -> tuple[list[Event], list[Event]]:
    before_last: list[Event] = []
    last: list[Event] = []
    for event in events:
        if last and event["session"] != last[-1]["session"]:
            before_last, last = last, []
        last.append(event)
    return before_last, last


def _kill_of_session(session: Sequence[Event], memory: HostMemory) -> MemoryKill | None:
    """Return what speaks for the kernel as the end of a session, after which `memory` was measured."""
    opening = _opening(session)
    if opening is None or any(event["event"] == "stop" for event in session):
        return None
    before = HostMemory.from_event(opening)
    if before is None:
        return None
    latest = _latest_memory(session)
    if before.oom_kills is not None and memory.oom_kills is not None and before.group == memory.group:
        if memory.oom_kills <= before.oom_kills:
            return None
        evidence = f"the kernel ended it for lack of memory, of which there are {bytes_text(latest.limit_bytes)}"
    elif latest.is_near_limit:
        evidence = f"probably for lack of memory, because it used {latest.text()}"
    else:
        return None
    return MemoryKill(
        session=opening["session"],
        micro_batch=int(opening.get("micro_batch") or 1),
        evidence=evidence,
        limit_bytes=latest.limit_bytes,
    )


def _used_little(session: Sequence[Event]) -> bool:
    """Return whether the run's processes used a small share of the limit when they were last measured."""
    opening, latest = _opening(session), _latest_memory(session)
    if opening is None or latest.process_bytes is None:
        return False
    processes = opening.get("processes")
    count = processes if isinstance(processes, int) else 1
    return latest.process_bytes * count < _SMALL_SHARE * latest.limit_bytes


def _opening(session: Sequence[Event]) -> Event | None:
    return next((event for event in session if event["event"] == "session"), None)


def _first_update(session: Sequence[Event]) -> object:
    opening = _opening(session)
    return opening.get("update") if opening else None


def _latest_memory(session: Sequence[Event]) -> HostMemory:
    """Return the last measurement of a session; its opening has one."""
    return [measured for event in session if (measured := HostMemory.from_event(event))][-1]
