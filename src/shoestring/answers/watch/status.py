"""What a run is doing, as far as its directory says."""

from typing import Any

_SHORTEST_SILENCE = 120.0
"""Seconds. A run records its progress twice a second, but an evaluation, a save or a slow update takes longer."""
_GAPS = 3
"""A silence has this many times the longest one so far in the session."""


def status(
    state: dict[str, Any], *, is_holder_alive: bool | None, seconds_since_event: float, longest_gap: float
) -> str:
    """Return the status of a run from its state.json, and tell a killed session apart from a running one.

    `starting`: no session has begun yet, and perhaps the plan is being made. `killed`: state.json has the status
    `running`, but the process that has locked the run has ended. `silent`: that process is not known, because the run
    is a copy or trains on another machine, and nothing has been recorded for longer than expected; so the session was
    killed, or this is an old copy, or it is busy with something long. Otherwise the status in state.json, `unknown` if
    it has none.
    """
    stored = str(state.get("status") or "")
    if not stored:
        return "starting" if is_holder_alive else "unknown"
    if stored != "running" or is_holder_alive:
        return stored
    if is_holder_alive is False:
        return "killed"
    return "silent" if seconds_since_event > max(_SHORTEST_SILENCE, _GAPS * longest_gap) else stored
