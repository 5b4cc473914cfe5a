"""A proposal with its costs, and the least change among several."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from shoestring.base.config import as_json
from shoestring.planning.candidates import Candidate

LEAST_SAVED = 0.1
"""The least share of the peak that a proposal has to save, unless it saves time."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A change, its description and its cost; costs are None if they were not traced or cannot be predicted."""

    name: str
    """What is changed."""
    values: Mapping[str, Any]
    """The values for `--set`; empty for a change of the target."""
    changes_learning: bool
    """Whether the training result changes beyond rounding."""
    trains: bool = True
    """Whether the engine can run it."""
    fits: bool | None = None
    """Whether the run fits with the change."""
    peak_bytes: int | None = None
    """The peak of memory with it."""
    high_bytes: int | None = None
    """The upper bound of that peak."""
    update_seconds: float | None = None
    """The seconds of an update with it."""
    note: str = ""
    """What else the user should know of it."""
    limit: Literal["memory", "disk"] = "memory"
    """The limit that `fits` refers to."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings that the costs were computed with."""

    def json(self) -> dict[str, Any]:
        return {**vars(self), "values": as_json(self.values), "settings": dict(self.settings)}

    @property
    def command(self) -> str:
        """The arguments to add to a command line."""
        return " ".join(f"--set {name}={value}" for name, value in as_json(self.values).items())


def proposal_of(
    name: str,
    values: Mapping[str, Any],
    candidate: Candidate,
    *,
    changes_learning: bool,
    note: str = "",
    timed: bool = True,
) -> Proposal:
    """Return the proposal of `values` that has the costs of a candidate, without its time unless it is `timed`."""
    return Proposal(
        name=name,
        values=values,
        changes_learning=changes_learning,
        fits=candidate.fits,
        peak_bytes=candidate.memory.peak_bytes,
        high_bytes=candidate.memory.high_bytes,
        update_seconds=candidate.time.value if candidate.time and timed else None,
        note=note,
        settings=candidate.settings.json(),
    )


def smallest_change(proposed: Sequence[Proposal], limit: str = "memory") -> Proposal | None:
    """Return the first trainable proposal that fits; those with the same training result come first."""
    fitting = [
        proposal
        for proposal in proposed
        if proposal.fits and proposal.trains and proposal.values and proposal.limit == limit
    ]
    return min(fitting, key=lambda proposal: proposal.changes_learning, default=None)
