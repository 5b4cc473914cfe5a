"""Metrics of the last updates, read from the device and reported about twice a second rather than after each update."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shoestring.base.errors import RunError
from shoestring.training.data.loading import Loader
from shoestring.training.engine.memory import RetriesWatch, UnusedMemoryWatch, alloc_retries, retry_with_freed_memory
from shoestring.training.engine.parallel.timing import RankTimes
from shoestring.training.engine.update import UpdateResult
from shoestring.training.monitor.events import Events, NoEvents
from shoestring.training.monitor.gpus import as_facts
from shoestring.training.monitor.host_memory import host_memory
from shoestring.training.monitor.progress import Progress
from shoestring.training.monitor.sampling import sample
from shoestring.training.session.deadline import Deadline

NonFiniteError = Callable[[int, str, float], RunError]
"""(number of the update from 1, name of the quantity, its value) -> the error."""


@dataclass
class _Window:
    """The updates since the last report."""

    started_at: float
    losses: list[Tensor] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)
    stepped: list[bool] = field(default_factory=list)
    skipped: int = 0
    samples: int = 0
    update: int = 0
    epoch: int = 0
    learning_rate: float = 0.0


class Meter:
    """Collects updates, and reports those since the last report in one `progress` event and one line of progress."""

    def __init__(
        self,
        events: Events | NoEvents,
        progress: Progress,
        deadline: Deadline,
        *,
        non_finite_error: NonFiniteError,
        non_finite_limit: int = 1,
        note: Callable[[str], None] = lambda _: None,
        loader: Loader | None = None,
        times: RankTimes | None = None,
        every_seconds: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`non_finite_error` makes the error that is raised after `non_finite_limit` consecutive updates without finite
        values; `note` receives notes for the user; `loader` measures the time spent waiting for data, `times` that of
        several GPUs.
        """
        self._times = times
        self._events, self._progress, self._deadline = events, progress, deadline
        self._non_finite_error, self._non_finite_limit, self._note = non_finite_error, non_finite_limit, note
        self._loader, self._every_seconds, self._clock = loader, every_seconds, clock
        self._waiting_seconds, self._lengths = 0.0, (0.0, 0.0)
        self._window = _Window(clock())
        self._consecutive_non_finite = 0
        self._retries = RetriesWatch()
        self._unused_memory = UnusedMemoryWatch("--set allocator=expandable")

    def add(self, result: UpdateResult, *, update: int, epoch: int, samples: int, learning_rate: float) -> None:
        """Add the `result` of update number `update` (from 1), in epoch number `epoch` (from 1)."""
        window = self._window
        window.losses.append(result.loss)
        window.stepped.append(result.stepped)
        if result.gradient_norm is not None:
            window.norms.append(result.gradient_norm)
        window.skipped += result.skipped
        window.samples += samples
        window.update, window.epoch, window.learning_rate = update, epoch, learning_rate
        if self._clock() - window.started_at >= self._every_seconds:
            self.flush()

    def flush(self) -> None:
        """Report the collected updates.

        Raises RunError if they contain values that are not finite: no state that follows from them is worth saving.
        Skipped fp16 updates raise it only if several are consecutive.
        """
        window = self._window
        if window.losses:
            self._report(window)
            self._window = _Window(self._clock())

    def _report(self, window: _Window) -> None:
        losses = _on_host(window.losses)
        finite = torch.isfinite(losses)
        self._require_finite(losses)
        memory = sample()
        measured: dict[str, Any] = {
            "update": window.update,
            "epoch": window.epoch,
            "updates": len(window.losses),
            "loss": float((losses[finite] if finite.any() else losses).mean()),
            "samples": window.samples,
            "seconds": self._clock() - window.started_at,
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
            **host_memory().usage(),
            **self._loader_facts(),
            **(as_facts(self._times.take()) if self._times else {}),
        )
        unused = self._unused_memory.observe(
            memory.gpu_peak_allocated_bytes, memory.gpu_peak_reserved_bytes, memory.gpu_total_bytes or 0
        )
        for message in filter(None, (self._retries.observe(alloc_retries()), unused)):
            self._note(message)

    def _require_finite(self, losses: Tensor) -> None:
        """Raise RunError for too many consecutive updates without finite values, or for gradients that overflow at any
        loss scale.
        """
        window = self._window
        norms = _on_host(window.norms) if window.norms else losses
        rows = zip(losses.tolist(), norms.tolist(), window.stepped, strict=True)
        for update, (loss, norm, stepped) in enumerate(rows, window.update - len(losses) + 1):
            if math.isfinite(loss) and stepped and math.isfinite(norm):
                self._consecutive_non_finite = 0
                continue
            self._consecutive_non_finite += 1
            quantity, value = ("gradient", norm) if math.isfinite(loss) else ("loss", loss)
            # With a finite loss, no smaller scale would have helped: all of them were tried.
            if self._consecutive_non_finite >= self._non_finite_limit or math.isfinite(loss):
                raise self._non_finite_error(update, quantity, value)

    def restart(self) -> None:
        """Exclude the time since the last flush, which was spent on something other than updates."""
        self._window.started_at = self._clock()
        if self._loader:
            self._loader.restart()

    def _loader_facts(self) -> dict[str, Any]:
        """Return how long the updates since the last report waited for data, the number of worker processes, and if it
        is known, the length of the samples without and with padding.
        """
        loader = self._loader
        if loader is None:
            return {}
        before, self._waiting_seconds = self._waiting_seconds, loader.waiting_seconds
        facts = {"waiting_seconds": self._waiting_seconds - before, "workers": loader.workers}
        lengths, self._lengths = self._lengths, (loader.length, loader.padded_length)
        if loader.padded_length:
            facts |= {"length": loader.length - lengths[0], "padded_length": loader.padded_length - lengths[1]}
        return facts


def _on_host(values: list[Tensor]) -> Tensor:
    """Return scalars as one tensor, which needs memory on their device once, and little of it."""
    return retry_with_freed_memory(lambda: torch.stack(values).cpu(), "reading the losses").double()
