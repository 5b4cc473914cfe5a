"""What a probe has measured: a few updates of a run on the machine where it trains, made before it and discarded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a plan predicted before it was measured."""

    update_seconds: float | None
    """The predicted seconds of an update; None if the rates of the device are not known."""
    low_update_seconds: float | None
    """Their lower bound."""
    high_update_seconds: float | None
    """Their upper bound."""
    peak_bytes: int
    """The predicted peak of what was measured: reserved by torch on a GPU, of the whole process on a CPU."""
    low_bytes: int
    """Its lower bound."""
    high_bytes: int
    """Its upper bound."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Time and memory of a few updates. What was not measured is None, and `problem` or `notes` say why."""

    device: str
    """The name of the device."""
    processes: int = 1
    """The number of processes that made the updates together."""
    micro_batch: int | None = None
    """The samples of a microbatch of the last update: fewer than planned after an out-of-memory."""
    updates: int = 0
    """The number of updates that `update_seconds` is of: all but the first, which includes one-time work."""
    update_seconds: float | None = None
    """The median seconds of an update, with waiting for its data. Of samples of different lengths, scaled to the mean
    padded length of the run's updates; of a loss with stages, the mean over the stages."""
    low_update_seconds: float | None = None
    """The seconds of the fastest update, scaled in the same way."""
    high_update_seconds: float | None = None
    """Those of the slowest one."""
    disturbed_share: float = 0.0
    """The share of the updates' time in which other processes had the processors; 0 on a GPU."""
    first_update_seconds: float | None = None
    """The seconds of the first update."""
    waiting_seconds: float | None = None
    """How long an update waited for its data, on average; None if a library's trainer makes the updates."""
    repeated_waiting_seconds: float | None = None
    """How long an update waited whose samples had been loaded before; None if none was repeated."""
    start_seconds: float | None = None
    """From the start of the process until the first update: imports, data, model."""
    data_seconds: float | None = None
    """The part of it in which the recipe's `data()` was loaded."""
    peak_bytes: int | None = None
    """The peak of the device's memory: reserved by torch's allocator on a GPU, of the whole process on a CPU."""
    host_peak_bytes: int | None = None
    """The peak of the resident memory of the process."""
    growing_bytes: int = 0
    """By how much the peak of the process still grew at the end of the probe: memory that the C library's allocator
    does not reuse, and what an evaluation leaves."""
    planning_bytes: int = 0
    """How much more memory a process has that plans before it trains than that of the probe at its start."""
    state_bytes: int | None = None
    """The bytes of the state that a checkpoint has, of which a save makes a copy in host memory."""
    evaluation_seconds_per_sample: float | None = None
    """The seconds to evaluate a sample of the validation part; the untrained model may generate longer answers."""
    evaluated_samples: int = 0
    """The samples that were evaluated for that."""
    answer_seconds: float | None = None
    """The seconds of an answer to a held-out prompt (`answers` of a recipe)."""
    answers: int | None = None
    """The number of held-out prompts; None if there was no time to answer all of them, or there are none."""
    seconds: float = 0.0
    """The duration of the probe."""
    problem: str = ""
    """Why the probe ended before it was complete; empty if it did not."""
    notes: tuple[str, ...] = ()
    """Differences from the run."""
    predicted: Prediction | None = None
    """What the plan predicted without the measurement."""

    def json(self) -> dict[str, Any]:
        """Return the measurement as JSON."""
        return {**dataclasses.asdict(self), "notes": list(self.notes)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Measurement:
        """Return the measurement of `json()`. Raises TypeError for other or missing names."""
        prediction = values["predicted"]
        fields = {**values, "notes": tuple(values["notes"])}
        return cls(**{**fields, "predicted": None if prediction is None else Prediction(**prediction)})
