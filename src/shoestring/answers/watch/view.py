"""A view of a run at one moment: the numbers that a terminal shows and that `--json` prints."""

from dataclasses import dataclass, field, fields
from typing import Any

from shoestring.answers.watch.curve import Curve
from shoestring.answers.watch.record import Evaluation
from shoestring.base.display import Displayed

_DRAWN = ("loss_curve", "reward_curves", "evaluations", "seconds_since_event", "longest_gap")
"""Fields that are drawn, or that change without an event."""


@dataclass(frozen=True, kw_only=True)
class View(Displayed):
    """A run at one moment. Bytes are integers, durations are seconds, times are unix seconds; None is unknown."""

    run: str
    """The path of the directory."""
    recipe: str
    """The name of the recipe."""
    status: str
    """`starting`, `running`, `silent`, `killed`, `paused`, `failed`, `finished` or `unknown`: `watch/status.py`."""
    reason: str
    """Why the last session ended."""
    next: str
    """The command that continues the run."""
    device: str
    """The device of the last session; empty if none has begun."""
    parameters: dict[str, int]
    """The numbers of the model's parameters, `total` and `trainable`; empty if no session has begun."""
    session: int
    """The number of the last session, which is also the number of sessions."""
    killed_sessions: int
    """The number of sessions that were killed."""
    update: int
    """The number of updates so far."""
    total_updates: int
    """The number of updates of the whole run; 0 if it is unknown."""
    epoch: int | None
    """The epoch of the last recorded update, from 1."""
    loss: float | None
    """The mean loss of the last updates that were recorded."""
    learning_rate: float | None
    """The learning rate of the last recorded update."""
    rewards: dict[str, float]
    """The last rewards that a library's trainer has logged, by name."""
    samples_per_second: float | None
    """The speed of training alone, over about the last minute of the last session."""
    update_seconds: float | None
    """The measured seconds of an update, over about the last minute."""
    planned_update_seconds: float | None
    """The seconds of an update that the plan predicts."""
    seconds: float
    """The duration of all sessions."""
    seconds_left: float | None
    """The time that is left, predicted for the rest of the run, from the measured speed, else from the plan."""
    memory_bytes: int | None
    """The memory of the last recorded update: reserved by torch on a GPU, else that of the process."""
    peak_memory_bytes: int | None
    """The largest of these."""
    planned_memory: dict[str, int]
    """`peak_bytes`, `low_bytes`, `high_bytes` and `capacity_bytes` of the plan."""
    metrics: dict[str, dict[str, float]]
    """The metrics of the last evaluation, by part of the data."""
    best_metrics: dict[str, float]
    """The metrics of the best epoch on validation data."""
    best_update: int | None
    """The update of the best epoch on validation data."""
    last_event_time: float | None
    """The time of the last event."""
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
        """Return the view as JSON. It changes only when the run does.

        Keys:
            status (text): `starting`, `running`, `silent`, `killed`, `paused`, `failed`, `finished` or `unknown`
            events (list of objects): the last events, other than progress
            events.time (number): when it was recorded
            events.text (text): what happened
        """
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in _DRAWN}
