"""What a training costs, seen from outside of its loop: time and memory, by the steps of whatever optimizer it has."""

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
    """Begins where everything is imported and nothing is made. The first update is for warming up: it is not counted.

    Memory is what the updates after it have more at their peak than the process had at the beginning; on a GPU what
    torch has reserved.
    """

    def __init__(self, device: torch.device, updates: int) -> None:
        """Of a training of so many `updates` in all."""
        self._device, self._updates = device, updates
        self._stamps: list[float] = []
        self._before = _kibibytes("VmRSS")
        self.peak_bytes = 0
        register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, *_: Any) -> None:
        if len(self._stamps) >= self._updates:
            return
        first, last = not self._stamps, len(self._stamps) + 1 == self._updates
        if (first or last) and self._device.type == "cuda":
            torch.cuda.synchronize()
        self._stamps.append(time.monotonic())
        if last:
            self.peak_bytes = self._peak()
        elif first:
            self._forget()

    def seconds_per_update(self, updates_per_epoch: int) -> float:
        """The mean; what lies between two epochs (an evaluation, say) is left out.

        Raises RuntimeError where there were not as many updates as there should have been.
        """
        if len(self._stamps) < self._updates:
            raise RuntimeError(f"{len(self._stamps)} of {self._updates} updates were made")
        took = [
            after - before
            for number, (before, after) in enumerate(pairwise(self._stamps), start=1)
            if number % updates_per_epoch
        ]
        return sum(took) / len(took)

    def _peak(self) -> int:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_reserved()
        return (_kibibytes("VmHWM") - self._before) * 1024

    def _forget(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        else:
            _CLEAR.write_text("5")  # VmHWM begins anew (proc(5))


def _kibibytes(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])
