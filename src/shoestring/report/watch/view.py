"""A view of a run at one moment: the numbers that a terminal shows and that `--json` prints."""

from dataclasses import dataclass, field, fields
from typing import Any

from shoestring.display import Displayed
from shoestring.report.watch.curve import Curve
from shoestring.report.watch.record import Evaluation

_DRAWN = ("loss_curve", "reward_curves", "evaluations", "seconds_since_event", "longest_gap")
"""Fields that are drawn, or that change without an event."""


@dataclass(frozen=True, kw_only=True)
class View(Displayed):
    """A run at one moment. Bytes are integers, durations are seconds, times are unix seconds; None is unknown."""

    run: str
    recipe: str
    status: str
    """`starting`, `running`, `silent`, `killed`, `paused`, `failed`, `finished` or `unknown`: `watch/status.py`."""
    reason: str
    """Why the last session ended."""
    next: str
    """The command that continues the run."""
    device: str
    session: int
    """The number of the last session, which is also the number of sessions."""
    killed_sessions: int
    update: int
    total_updates: int
    epoch: int | None
    loss: float | None
    """The mean loss of the last updates that were recorded."""
    learning_rate: float | None
    rewards: dict[str, float]
    samples_per_second: float | None
    """Training alone, over about the last minute of the last session."""
    update_seconds: float | None
    planned_update_seconds: float | None
    seconds: float
    """The sum over all sessions."""
    seconds_left: float | None
    """Predicted for the rest of the run, from the measured speed, else from the plan."""
    memory_bytes: int | None
    peak_memory_bytes: int | None
    planned_memory: dict[str, int]
    """`peak_bytes`, `low_bytes`, `high_bytes` and `capacity_bytes` of the plan."""
    metrics: dict[str, dict[str, float]]
    """By part of the data, of its last evaluation."""
    best_metrics: dict[str, float]
    """Of the best epoch on validation data."""
    best_update: int | None
    last_event_time: float | None
    events: list[dict[str, Any]]
    """`time` and `text` of the last events, other than progress."""
    problems: list[str]
    """Files that cannot be read."""
    seconds_since_event: float
    longest_gap: float
    loss_curve: Curve = field(repr=False)
    reward_curves: dict[str, Curve] = field(repr=False)
    evaluations: list[Evaluation] = field(repr=False)

    def json(self) -> dict[str, Any]:
        """Return the view as JSON. It changes only when the run does."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in _DRAWN}
