"""What the last updates did, read from the device and told about twice a second rather than each time."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shoestring.errors import RunError
from shoestring.monitor.events import Events
from shoestring.monitor.progress import Progress
from shoestring.monitor.sampling import sample
from shoestring.session.deadline import Deadline
from shoestring.train.update import UpdateResult


@dataclass
class _Window:
    """The updates since the last line."""

    since: float
    losses: list[Tensor] = field(default_factory=list)
    gradient_norm: Tensor | None = None
    skipped: int = 0
    samples: int = 0
    update: int = 0
    epoch: int = 0
    learning_rate: float = 0.0


class Meter:
    """Collects updates and writes one `progress` event and one line of progress for those since the last."""

    def __init__(
        self,
        events: Events,
        progress: Progress,
        deadline: Deadline,
        *,
        every_seconds: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._events, self._progress, self._deadline = events, progress, deadline
        self._every, self._clock = every_seconds, clock
        self._window = _Window(clock())

    def add(self, result: UpdateResult, *, update: int, epoch: int, samples: int, learning_rate: float) -> None:
        """`update` updates are done, the last of them with `result` in epoch number `epoch` (from 1)."""
        window = self._window
        window.losses.append(result.loss)
        window.gradient_norm = result.gradient_norm
        window.skipped += result.skipped
        window.samples += samples
        window.update, window.epoch, window.learning_rate = update, epoch, learning_rate
        if self._clock() - window.since >= self._every:
            self.flush()

    def flush(self) -> None:
        """Tell what has been collected.

        Raises RunError when a loss among it is not finite: nothing that follows from it is worth saving.
        """
        window = self._window
        if not window.losses:
            return
        losses = torch.stack(window.losses).double()
        _require_finite(losses, last_update=window.update)
        memory = sample()
        measured: dict[str, Any] = {
            "update": window.update,
            "epoch": window.epoch,
            "updates": len(window.losses),
            "loss": float(losses.mean()),
            "samples": window.samples,
            "seconds": self._clock() - window.since,
            "memory_bytes": memory.gpu_peak_reserved_bytes or memory.rss_bytes,
        }
        self._progress.update(**measured, session_seconds_left=self._deadline.remaining())
        self._events.emit(
            "progress",
            **measured,
            learning_rate=window.learning_rate,
            gradient_norm=None if window.gradient_norm is None else float(window.gradient_norm),
            skipped=window.skipped,
        )
        self._window = _Window(self._clock())

    def restart(self) -> None:
        """Leave out the time since the last flush: it went into something else."""
        self._window.since = self._clock()


def _require_finite(losses: Tensor, *, last_update: int) -> None:
    wrong = (~torch.isfinite(losses)).nonzero().flatten().tolist()
    if wrong:
        raise RunError(
            f"the loss of update {last_update - len(losses) + wrong[0] + 1} is {float(losses[wrong[0]])}",
            hint="the last checkpoint is from before it; lower the learning rate, or train in fp32",
        )
