"""Time and memory of a training, measured through a hook on the steps of any optimizer."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


class Meter:
    """Measures the updates after the first one, which is warm-up.

    It must be created after all imports and before the model. Memory is the increase of the peak of these updates over
    the memory of the process at creation; on a GPU it is the memory that torch has reserved.
    """

    def __init__(self, device: torch.device, updates: int) -> None:
        """Measure a training of `updates` updates in total."""
        self._device, self._updates = device, updates
        self._step_times: list[float] = []
        self._start_kibibytes = _kibibytes("VmRSS")
        self.peak_bytes = 0
        register_optimizer_step_post_hook(self._record_step)

    def _record_step(self, *_: Any) -> None:
        if len(self._step_times) >= self._updates:
            return
        first, last = not self._step_times, len(self._step_times) + 1 == self._updates
        if (first or last) and self._device.type == "cuda":
            torch.cuda.synchronize()
        self._step_times.append(time.monotonic())
        if last:
            self.peak_bytes = self._peak()
        elif first:
            self._reset_peak()

    def seconds_per_update(self, updates_per_epoch: int) -> float:
        """Return the mean; the time between two epochs (such as an evaluation) is left out.

        Raises RuntimeError if there were fewer updates than expected.
        """
        if len(self._step_times) < self._updates:
            raise RuntimeError(f"{len(self._step_times)} of {self._updates} updates were completed")
        durations = [
            after - before
            for number, (before, after) in enumerate(pairwise(self._step_times), start=1)
            if number % updates_per_epoch
        ]
        return sum(durations) / len(durations)

    def _peak(self) -> int:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_reserved()
        return (_kibibytes("VmHWM") - self._start_kibibytes) * 1024

    def _reset_peak(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        else:
            _CLEAR.write_text("5")  # resets VmHWM (proc(5))


def _kibibytes(name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1])
