"""What the last updates did, read from the device and told about twice a second rather than each time."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shoestring.data.loading import Loader
from shoestring.engine.memory import RetriesWatch, alloc_retries
from shoestring.engine.update import UpdateResult
from shoestring.errors import RunError
from shoestring.monitor.events import Events
from shoestring.monitor.progress import Progress
from shoestring.monitor.sampling import sample
from shoestring.session.deadline import Deadline

NotFinite = Callable[[int, str, float], RunError]
"""(number of the update from 1, what of it, its value) -> the error."""


@dataclass
class _Window:
    """The updates since the last line."""

    since: float
    losses: list[Tensor] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)
    stepped: list[bool] = field(default_factory=list)
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
        not_finite: NotFinite,
        in_a_row: int = 1,
        note: Callable[[str], None] = lambda _: None,
        loader: Loader | None = None,
        every_seconds: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`not_finite` makes the error for `in_a_row` updates that left no finite numbers; `note` is told of what a
        person should know; `loader` says how long its data were waited for.
        """
        self._events, self._progress, self._deadline = events, progress, deadline
        self._not_finite, self._in_a_row, self._note = not_finite, in_a_row, note
        self._loader, self._every, self._clock = loader, every_seconds, clock
        self._waited = 0.0
        self._window = _Window(clock())
        self._row = 0
        self._retries = RetriesWatch()

    def add(self, result: UpdateResult, *, update: int, epoch: int, samples: int, learning_rate: float) -> None:
        """`update` updates are done, the last of them with `result` in epoch number `epoch` (from 1)."""
        window = self._window
        window.losses.append(result.loss)
        window.stepped.append(result.stepped)
        if result.gradient_norm is not None:
            window.norms.append(result.gradient_norm)
        window.skipped += result.skipped
        window.samples += samples
        window.update, window.epoch, window.learning_rate = update, epoch, learning_rate
        if self._clock() - window.since >= self._every:
            self.flush()

    def flush(self) -> None:
        """Tell what has been collected.

        Raises RunError when numbers among it are not finite: nothing that follows from them is worth saving. Updates
        that fp16 left out count as that only several in a row.
        """
        window = self._window
        if window.losses:
            self._tell(window)
            self._window = _Window(self._clock())

    def _tell(self, window: _Window) -> None:
        losses = torch.stack(window.losses).double()
        finite = torch.isfinite(losses)
        self._require_finite(losses)
        memory = sample()
        measured: dict[str, Any] = {
            "update": window.update,
            "epoch": window.epoch,
            "updates": len(window.losses),
            "loss": float((losses[finite] if finite.any() else losses).mean()),
            "samples": window.samples,
            "seconds": self._clock() - window.since,
            "memory_bytes": memory.gpu_peak_reserved_bytes or memory.rss_bytes,
        }
        self._progress.update(**measured, session_seconds_left=self._deadline.remaining())
        self._events.emit(
            "progress",
            **measured,
            learning_rate=window.learning_rate,
            gradient_norm=float(window.norms[-1]) if window.norms else None,
            skipped=window.skipped,
            **memory.gpu_facts(),
            **self._waiting(),
        )
        if said := self._retries.seen(alloc_retries()):
            self._note(said)

    def _require_finite(self, losses: Tensor) -> None:
        """Raises RunError for a row of updates without finite numbers, or for gradients that overflow at any scale."""
        window = self._window
        norms = torch.stack(window.norms).double() if window.norms else losses
        rows = zip(losses.tolist(), norms.tolist(), window.stepped, strict=True)
        for update, (loss, norm, stepped) in enumerate(rows, window.update - len(losses) + 1):
            if math.isfinite(loss) and stepped and math.isfinite(norm):
                self._row = 0
                continue
            self._row += 1
            what, value = ("gradient", norm) if math.isfinite(loss) else ("loss", loss)
            # With a finite loss no smaller scale would have helped: they were all tried.
            if self._row >= self._in_a_row or math.isfinite(loss):
                raise self._not_finite(update, what, value)

    def restart(self) -> None:
        """Leave out the time since the last flush: it went into something else."""
        self._window.since = self._clock()
        if self._loader:
            self._loader.restart()

    def _waiting(self) -> dict[str, Any]:
        """What the updates since the last line waited for their data, and how many processes fetch them."""
        if self._loader is None:
            return {}
        before, self._waited = self._waited, self._loader.waiting_seconds
        return {"waiting_seconds": self._waited - before, "workers": self._loader.workers}
