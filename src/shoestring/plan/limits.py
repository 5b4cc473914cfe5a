"""What a run may take, what it needs, and which limit binds."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from shoestring.hardware.catalog import Target
from shoestring.plan.candidates import Candidate
from shoestring.plan.costs import PlannedDisk, PlannedHost
from shoestring.plan.sessions import shortest_session_seconds
from shoestring.units import bytes_text, seconds_text


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One limit: of bytes or of seconds, needed and there."""

    name: str
    kind: Literal["memory", "disk", "host memory", "session"]
    unit: Literal["bytes", "seconds"]
    needs: float
    has: float
    enough: str
    """What would be enough, in words; the smallest change of this limit alone."""

    @property
    def holds(self) -> bool:
        return self.needs <= self.has

    @property
    def share(self) -> float:
        """How much of it the run takes."""
        return self.needs / self.has if self.has else float("inf")

    def text(self, amount: float) -> str:
        return bytes_text(amount) if self.unit == "bytes" else seconds_text(amount)

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


def limits(
    chosen: Candidate, disk: PlannedDisk, host: PlannedHost, target: Target, evaluating: float = 0.0
) -> list[Limit]:
    """Every limit that the target has, the device's memory first; `evaluating` seconds go with each update."""
    platform = target.platform
    found = [
        Limit(
            name="GPU memory" if target.device.kind != "cpu" else "memory",
            kind="memory",
            unit="bytes",
            needs=chosen.memory.high_bytes,
            has=chosen.memory.capacity_bytes,
            enough=f"a device with {bytes_text(chosen.memory.high_bytes)}",
        )
    ]
    if disk.limit_bytes is not None:
        found.append(
            Limit(
                name="disk",
                kind="disk",
                unit="bytes",
                needs=disk.peak_bytes,
                has=disk.limit_bytes,
                enough=f"{bytes_text(disk.peak_bytes)} of disk for the run",
            )
        )
    if host.limit_bytes is not None and target.device.kind != "cpu":
        found.append(
            Limit(
                name="host memory",
                kind="host memory",
                unit="bytes",
                needs=host.peak_bytes,
                has=host.limit_bytes,
                enough=f"a machine with {bytes_text(host.peak_bytes)} of memory",
            )
        )
    hours = [each for each in (platform and platform.session_hours, platform and platform.weekly_gpu_hours) if each]
    if hours and chosen.time is not None:
        needs = shortest_session_seconds(chosen.seconds + evaluating, disk.full_checkpoint_bytes)
        found.append(
            Limit(
                name="session",
                kind="session",
                unit="seconds",
                needs=needs,
                has=min(hours) * 3600,
                enough=f"a session of at least {seconds_text(needs)}: a minute for starting, one update, its "
                "save, and a minute for leaving",
            )
        )
    return found


def binding(found: Sequence[Limit]) -> Limit:
    """The limit that is exceeded most, or else the one that is nearest to being so."""
    return max(found, key=lambda limit: limit.share)
