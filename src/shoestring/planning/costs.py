"""The cost of the chosen settings in disk space and host memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoestring.base.run_limits import disk_parts
from shoestring.hardware.catalog import Target
from shoestring.planning.candidates import Candidate
from shoestring.planning.estimate.disk import checkpoint_bytes
from shoestring.planning.estimate.streaming import host_bytes
from shoestring.planning.shares import states_shares

_FP32 = 4
"""Bytes of each value of an adapter's weights."""

COPY_SHARE = 1.1
"""The maximum size of a save's copy of the state in host memory, as a multiple of the state; the next save reuses the
copy's memory (training/checkpoint/snapshot.py)."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The peak usage in bytes, by part, and its limit."""

    parts: Mapping[str, int]
    """The parts sum to `peak_bytes`."""
    limit_bytes: int | None
    """What the target has; None without a limit."""

    @property
    def peak_bytes(self) -> int:
        """The peak usage."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """Whether the peak is within the limit."""
        return self.limit_bytes is None or self.peak_bytes <= self.limit_bytes

    def json(self) -> dict[str, Any]:
        """Return the usage as JSON.

        Keys:
            parts (list of objects): the parts of the peak
            parts.name (text): what uses the bytes
            parts.bytes (integer): how many it uses
        """
        return {
            "peak_bytes": self.peak_bytes,
            "limit_bytes": self.limit_bytes,
            "fits": self.fits,
            "parts": [{"name": name, "bytes": size} for name, size in self.parts.items()],
        }


@dataclass(frozen=True, kw_only=True)
class PlannedDisk(Usage):
    """The peak disk usage of the run's directory, and the platform's limit.

    The recipe's own data and caches are stored elsewhere and are not counted, because their size is unknown.
    """

    full_checkpoint_bytes: int
    """The bytes of a full checkpoint."""
    light_checkpoint_bytes: int
    """The bytes of a folder with weights alone."""
    export_bytes: Mapping[str, int] = field(default_factory=dict)
    """The bytes of an export after training, by its format, in addition to the run; empty if they are not known."""
    epochs: int = 1
    """The epochs of the run, at whose ends checkpoints may be retained."""

    def json(self) -> dict[str, Any]:
        return {
            "full_checkpoint_bytes": self.full_checkpoint_bytes,
            "light_checkpoint_bytes": self.light_checkpoint_bytes,
            "export_bytes": dict(self.export_bytes),
            "epochs": self.epochs,
            **super().json(),
        }


@dataclass(frozen=True, kw_only=True)
class PlannedHost(Usage):
    """The known part of the peak usage of host memory, and the machine's capacity.

    Data loading processes and CUDA's libraries with their loaded kernels are not counted.
    """


def planned_disk(chosen: Candidate, target: Target, *, adapters: bool = False, epochs: int = 1) -> PlannedDisk:
    """Return the peak disk usage.

    It counts the retained checkpoints, the one being written, and light weights: the best, the last, those of retained
    epochs, and one being written. With `adapters`, light weights are peft's folders (training/checkpoint/light.py).
    """
    size, facts = checkpoint_bytes(chosen.trace, states_shares(chosen.settings)), chosen.trace.facts
    rounded = chosen.settings.light_weights not in (None, "own")
    light = size.light - (facts.rounded_bytes if rounded else 0)
    if adapters:
        light = size.light - facts.weight_bytes + (_FP32 // 2 if rounded else _FP32) * facts.parameters_trainable
    return PlannedDisk(
        full_checkpoint_bytes=size.full,
        light_checkpoint_bytes=light,
        export_bytes=facts.export_bytes,
        parts=disk_parts(size.full, light, chosen.settings, epochs) | _streamed(chosen, "disk"),
        epochs=epochs,
        limit_bytes=target.platform.disk_bytes if target.platform else None,
    )


def planned_host(chosen: Candidate, target: Target) -> PlannedHost:
    """Return the host memory of training on GPUs: a process for each, offloaded and streamed tensors, and the copy for
    saving or what loading the weights needs, whichever is more: the copy is made after they have moved to the device.

    When training on a CPU, host memory is the device's memory and is counted there.
    """
    facts = chosen.trace.facts
    state = checkpoint_bytes(chosen.trace, states_shares(chosen.settings))
    parts = {"copy of the state for saving": round(COPY_SHARE * state.full)}
    if target.device.kind != "cpu":
        gpus = chosen.settings.processes
        loading = gpus * chosen.trace.loading_host_bytes
        if loading > sum(parts.values()):
            parts = {"loading of the weights": loading}
        # Rounded up to a power of two, because repeated measurements of a process differ by some pages.
        process_bytes = 1 << max(0, facts.process_bytes - 1).bit_length()
        parts["process"] = gpus * process_bytes
        if chosen.trace.host_bytes:
            parts["offloaded states and weights"] = gpus * sum(chosen.trace.host_bytes.values())
        parts |= _streamed(chosen, "host")
    return PlannedHost(parts=parts, limit_bytes=target.platform.ram_bytes if target.platform else None)


def _streamed(chosen: Candidate, source: str) -> dict[str, int]:
    """Return the bytes of streamed blocks if they are in host memory, or on the disk: each process has its own."""
    settings = chosen.settings
    if not settings.streamed_blocks or (settings.stream_from or "host") != source:
        return {}
    return {"streamed weights": settings.processes * host_bytes(chosen.trace, settings.streamed_blocks)}
