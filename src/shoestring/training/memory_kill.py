"""A session that the kernel ended because host memory was full: it leaves no `stop` event, and the same update would
end the next session too. So the next one begins with half the microbatch.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from shoestring.base.units import bytes_text
from shoestring.techniques.fallbacks import halved
from shoestring.training.engine.recovery import OutOfMemory
from shoestring.training.engine.state import State
from shoestring.training.monitor.events import Event
from shoestring.training.monitor.host_memory import HostMemory


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

    The proof is the kernel's count of ended processes, if it is still that of the same control group. Otherwise the
    last measured memory of that session decides.
    """
    last: list[Event] = []
    for event in events:
        if last and event["session"] != last[-1]["session"]:
            last = []
        last.append(event)
    opening = next((event for event in last if event["event"] == "session"), None)
    if opening is None or any(event["event"] == "stop" for event in last):
        return None
    before = HostMemory.from_event(opening)
    if before is None:
        return None
    latest = [measured for event in last if (measured := HostMemory.from_event(event))][-1]
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
