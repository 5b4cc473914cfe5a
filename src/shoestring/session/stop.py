"""Why a session should stop now, if it should."""

from dataclasses import dataclass

from shoestring.session.deadline import Deadline
from shoestring.session.signals import StopSignals
from shoestring.units import seconds_text


class SessionOver(Exception):  # noqa: N818  (an event that unwinds a loop, not an error)
    """It is time to stop; raised by loops that cannot return early, such as an evaluation under way."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Every loop of a run polls it."""

    deadline: Deadline
    signals: StopSignals

    def reason(self) -> str | None:
        """Why it is time to stop, or None."""
        if self.signals.received:
            return self.signals.received
        if self.deadline.reached():
            assert self.deadline.limit_seconds is not None
            return f"session limit of {seconds_text(self.deadline.limit_seconds)}"
        return None

    def check(self) -> None:
        """Raises SessionOver when it is time to stop."""
        if reason := self.reason():
            raise SessionOver(reason)
