"""What the phases of a probe share, in its child process."""

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from shoestring.runs.check.memory import peak_bytes, read_status, reset_peak
from shoestring.runs.check.probe.deadline import ProbeDeadline
from shoestring.runs.check.probe.enough import Budget
from shoestring.runs.check.reporting import Report


@dataclass(kw_only=True)
class Context:
    """The report of a probe, its limits and its device."""

    report: Report
    budget: Budget
    device: Any
    stack: ExitStack
    """Ends what the probe has begun."""
    deadline: ProbeDeadline = field(default_factory=ProbeDeadline)
    phase: str = "the start"
    """What the probe is doing."""
    data: dict[str, Any] = field(default_factory=dict)
    """The recipe's data by part."""
    _initial_bytes: int = 0
    _loading_peak: dict[str, int] = field(default_factory=lambda: {"bytes": 0, "host_bytes": 0})

    def elapsed(self) -> float:
        """Return the seconds since the start of the process."""
        return time.monotonic() - self.budget.started

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""
        if self.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self.device)

    def loaded(self) -> None:
        """Begin to measure the memory of the model: what was loaded before belongs to the process alone."""
        import torch

        from shoestring.training.engine import kernel_probe

        kernel_probe.digests(torch.device("cpu"), has_convolutions=True)  # a session does so, which loads libraries
        self._loading_peak = self.peaks()
        self._initial_bytes = reset_peak(self.device)

    def growth_bytes(self) -> int:
        """Return the peak of memory since `loaded`, without what there was before."""
        return peak_bytes(self.device) - self._initial_bytes

    def peaks(self) -> dict[str, int]:
        """Return the peaks of the device's and of the host's memory since the start of the process."""
        host_bytes = max(read_status("VmHWM"), self._loading_peak["host_bytes"])
        if self.device.type == "cpu":
            return {"bytes": host_bytes, "host_bytes": host_bytes}
        return {"bytes": max(peak_bytes(self.device), self._loading_peak["bytes"]), "host_bytes": host_bytes}
