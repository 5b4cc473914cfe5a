"""A target's limits, a run's needs, and the binding limit."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from shoestring.base.units import bytes_text, seconds_text
from shoestring.hardware.catalog import Target
from shoestring.planning.costs import PlannedDisk, PlannedHost
from shoestring.planning.counts import Counts
from shoestring.planning.estimate.memory import Breakdown
from shoestring.planning.sessions import Work, shortest_session_seconds


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A limit in bytes or seconds: the amount that the run needs and the amount that is available."""

    name: str
    """Its name for people."""
    kind: Literal["memory", "disk", "host memory", "session"]
    """What is limited."""
    unit: Literal["bytes", "seconds"]
    """The unit of `needs` and `has`."""
    needs: float
    """What the run needs."""
    has: float
    """What there is."""
    enough: str
    """A description of the smallest sufficient change of this limit alone."""

    @property
    def holds(self) -> bool:
        """Whether the run needs at most what there is."""
        return self.needs <= self.has

    @property
    def share(self) -> float:
        """The share of the limit that the run takes."""
        return self.needs / self.has if self.has else float("inf")

    def text(self, amount: float) -> str:
        return bytes_text(amount) if self.unit == "bytes" else seconds_text(amount)

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


def limits(
    memory: Breakdown, disk: PlannedDisk, host: PlannedHost, target: Target, work: Work | None, counts: Counts
) -> list[Limit]:
    """Return every limit of the target, the device's memory first; `work` is None if its time is unknown."""
    platform = target.platform
    bounds = [
        Limit(
            name="GPU memory" if target.device.kind != "cpu" else "memory",
            kind="memory",
            unit="bytes",
            needs=memory.high_bytes,
            has=memory.capacity_bytes,
            enough=f"a device with {bytes_text(memory.high_bytes)} of memory",
        )
    ]
    if disk.limit_bytes is not None:
        bounds.append(
            Limit(
                name="disk",
                kind="disk",
                unit="bytes",
                needs=disk.peak_bytes,
                has=disk.limit_bytes,
                enough=f"{bytes_text(disk.peak_bytes)} of disk space for the run",
            )
        )
    if host.limit_bytes is not None and target.device.kind != "cpu":
        bounds.append(
            Limit(
                name="host memory",
                kind="host memory",
                unit="bytes",
                needs=host.peak_bytes,
                has=host.limit_bytes,
                enough=f"a machine with {bytes_text(host.peak_bytes)} of host memory",
            )
        )
    hours = [quota for quota in (platform and platform.session_hours, platform and platform.weekly_gpu_hours) if quota]
    if hours and work is not None:
        has = min(hours) * 3600
        needs = shortest_session_seconds(work, counts.per_epoch or math.inf, has)
        bounds.append(
            Limit(
                name="session",
                kind="session",
                unit="seconds",
                needs=needs,
                has=has,
                enough=f"a session of at least {seconds_text(needs)} (starting, one update, saving it, stopping)",
            )
        )
    return bounds


def binding(bounds: Sequence[Limit]) -> Limit:
    """Return the limit that is exceeded by the largest factor, or, if all hold, the one closest to being exceeded."""
    return max(bounds, key=lambda limit: limit.share)
