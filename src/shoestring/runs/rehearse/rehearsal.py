"""A rehearsal: what became of a script on simulated GPUs, as a value."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from shoestring.base.display import Displayed, text
from shoestring.hardware.catalog import Target

End = Literal["finished", "stopped", "out of memory", "failed", "interrupted", "host memory"]
"""How the script ended: by itself with status 0; after the updates that were asked for; by an out-of-memory error of a
GPU; with another error; by Ctrl-C; because this machine's memory was used up."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A place in Python code."""

    file: str
    line: int
    function: str
    text: str = ""
    """The line itself, if it could be read; not in JSON, which may be shared without the code."""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    def json(self) -> dict[str, Any]:
        return {"file": self.file, "line": self.line, "function": self.function}


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The live memory that one line of code allocated."""

    bytes: int
    count: int
    """The number of blocks."""
    kind: str
    """What most of it is: `weights`, `gradients`, `optimizer states` or `other`."""
    frame: Frame

    def json(self) -> dict[str, Any]:
        return {"bytes": self.bytes, "count": self.count, "kind": self.kind, **self.frame.json()}


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """An allocation that a GPU refused."""

    device: int
    update: int
    """The update under way, from 1; 0 before the first."""
    phase: str
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    free_bytes: int
    """What the GPU had left outside of PyTorch's allocator."""
    stack: tuple[Frame, ...]
    """The innermost frame first."""
    own_frame: Frame | None = None
    """The innermost frame of the script's own code."""

    def json(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "update": self.update,
            "phase": self.phase,
            "requested_bytes": self.requested_bytes,
            "allocated_bytes": self.allocated_bytes,
            "reserved_bytes": self.reserved_bytes,
            "free_bytes": self.free_bytes,
            "stack": [frame.json() for frame in self.stack],
        }


@dataclass(frozen=True, kw_only=True)
class DevicePeak:
    """The most memory that was in use on one GPU."""

    index: int
    peak_allocated_bytes: int
    """Tensors, as `torch.cuda.max_memory_allocated` counts them."""
    peak_reserved_bytes: int
    """What PyTorch's allocator held, as `torch.cuda.max_memory_reserved` counts it."""
    outside_bytes: int
    """What its processes use outside of the allocator: the CUDA context of each."""
    capacity_bytes: int

    def json(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "outside_bytes": self.outside_bytes,
            "capacity_bytes": self.capacity_bytes,
        }


@dataclass(frozen=True, kw_only=True)
class PhasePeak:
    """The most memory that was in use in one phase, on the GPU that used most."""

    name: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    seconds: float | None = None
    """The predicted time on the target for what of the phase was rehearsed; None if it is not known."""

    def json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "seconds": self.seconds,
        }


@dataclass(frozen=True, kw_only=True)
class MemoryPoint:
    """A point of the time line of memory."""

    device: int
    update: int
    phase: str
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, kw_only=True)
class RehearsedTime:
    """The predicted time of an update on the target."""

    update_seconds: float
    """The mean of the updates that were rehearsed, without the first."""
    low_seconds: float
    high_seconds: float
    parts: tuple[tuple[str, float], ...] = ()
    """Seconds of an update by phase."""
    source: str = ""

    def json(self) -> dict[str, Any]:
        return {
            "update_seconds": self.update_seconds,
            "low_seconds": self.low_seconds,
            "high_seconds": self.high_seconds,
            "parts": [{"name": name, "seconds": seconds} for name, seconds in self.parts],
        }


@dataclass(frozen=True, kw_only=True)
class Rehearsal(Displayed):
    """What became of a script on simulated GPUs."""

    script: str
    """What was run, as a person typed it."""
    command: str
    """The command of this rehearsal, to be typed again."""
    target: Target
    python: str
    torch: str
    """The version of PyTorch, such as 2.10.0+cu128."""
    stack: str | None
    values: str
    end: End
    exit_status: int | None
    """The script's exit status, negative for a signal; None if it was ended by us."""
    error: str = ""
    """The last line of the script's own error, if it failed."""
    updates: int
    total_updates: int | None = None
    total_source: str = ""
    """What told the number of all updates, such as `transformers.Trainer`."""
    devices: tuple[DevicePeak, ...] = ()
    phases: tuple[PhasePeak, ...] = ()
    out_of_memory: OutOfMemory | None = None
    survived_out_of_memory: int = 0
    """The out-of-memory errors that the script handled itself."""
    holders: tuple[Holder, ...] = ()
    timeline: tuple[MemoryPoint, ...] = ()
    time: RehearsedTime | None = None
    session_seconds: float | None = None
    """The length of a session on the target; None if it has no limit."""
    host_peak_bytes: int | None = None
    disk_bytes: int = 0
    """The bytes of the files that the script has written."""
    assumed: tuple[str, ...] = ()
    """What was not computed but assumed, one text for each kind."""
    proposals: tuple[str, ...] = ()
    """What would help, the most effective first."""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    """How long the rehearsal took."""
    used_gpu: bool = True
    private_folders: tuple[str, ...] = field(default=(), repr=False)
    """Folders of this machine that a shared answer does not name."""

    @property
    def finished(self) -> bool:
        """Whether the script came to its end, or through the updates that were asked for."""
        return self.end in ("finished", "stopped")

    @property
    def fits(self) -> bool | None:
        """Whether what was rehearsed fits the GPUs' memory; None if the script failed for another reason."""
        if self.end == "out of memory":
            return False
        return None if self.end in ("failed", "host memory") and not self.updates else True

    @property
    def total_seconds(self) -> tuple[float, float, float] | None:
        """The predicted time of all updates: typical, low and high; None if their number or time is unknown."""
        if self.time is None or not self.total_updates:
            return None
        times = (self.time.update_seconds, self.time.low_seconds, self.time.high_seconds)
        typical, low, high = (seconds * self.total_updates for seconds in times)
        return typical, low, high

    @property
    def sessions(self) -> int | None:
        """The number of sessions that all updates take; None if it is unknown or the target has no limit."""
        if self.total_seconds is None or not self.session_seconds:
            return None
        return math.ceil(self.total_seconds[0] / self.session_seconds)

    @property
    def ends_in_time(self) -> bool | None:
        """Whether all updates are made within one session, also by the high end; None if that is unknown."""
        if self.total_seconds is None or not self.session_seconds:
            return None
        return self.total_seconds[2] <= self.session_seconds

    def json(self) -> dict[str, Any]:
        """Return the answer as JSON; bytes are integers, seconds are numbers.

        Keys:
            target (text): the name of the target
            script (text): what was run
            python (text): the version of Python
            torch (text): the version of PyTorch and of its CUDA
            stack (text or null): the platform whose versions were used; null for those of this environment
            values (text): which values were computed: auto, all or none
            end (text): finished, stopped, out of memory, failed, interrupted or host memory
            exit_status (integer or null): the script's own exit status; null if the rehearsal ended it
            error (text): the last line of the script's error, if it failed
            fits (boolean or null): whether it fits the memory of the GPUs; null if it failed for another reason
            finished (boolean): whether the script came to its end, or through the updates asked for
            updates (integer): the optimizer steps that were made
            total_updates (integer or null): how many the whole script makes
            total_source (text): what told that number
            devices (list of objects): the memory of each GPU
            devices.index (integer): its number, from 0
            devices.peak_allocated_bytes (integer): the most that tensors used
            devices.peak_reserved_bytes (integer): the most that PyTorch's allocator held
            devices.outside_bytes (integer): what is used outside of the allocator, the CUDA contexts
            devices.capacity_bytes (integer): the GPU's memory
            phases (list of objects): the memory by phase, on the GPU that used most
            phases.name (text): loading, training, evaluation, generation or saving
            phases.peak_allocated_bytes (integer): the most that tensors used
            phases.peak_reserved_bytes (integer): the most that the allocator held
            phases.seconds (number or null): the predicted time on the target of what was rehearsed of the phase
            out_of_memory (object or null): the allocation that ended the script; null if none did
            out_of_memory.device (integer): the GPU
            out_of_memory.update (integer): the update under way, from 1; 0 before the first
            out_of_memory.phase (text): the phase
            out_of_memory.requested_bytes (integer): what was asked for
            out_of_memory.allocated_bytes (integer): what tensors used
            out_of_memory.reserved_bytes (integer): what the allocator held
            out_of_memory.free_bytes (integer): what the GPU had left
            out_of_memory.stack (list of objects): the Python frames, innermost first
            out_of_memory.stack.file (text): the file
            out_of_memory.stack.line (integer): the line
            out_of_memory.stack.function (text): the function
            survived_out_of_memory (integer): out-of-memory errors that the script handled itself
            holders (list of objects): the live memory at the error by the line that allocated it, the largest first
            holders.bytes (integer): its bytes
            holders.count (integer): the number of blocks
            holders.kind (text): weights, gradients, optimizer states or other
            holders.file (text): the file
            holders.line (integer): the line
            holders.function (text): the function
            time (object or null): the predicted time of an update on the target; null if it is not known
            time.update_seconds (number): the mean of the rehearsed updates
            time.low_seconds (number): its lower bound
            time.high_seconds (number): its upper bound
            time.parts (list of objects): the time by phase
            time.parts.name (text): the phase
            time.parts.seconds (number): its seconds
            total_seconds (number or null): the predicted time of all updates
            sessions (integer or null): the number of sessions that they take
            ends_in_time (boolean or null): whether they are made within one session
            host_peak_bytes (integer or null): the most memory of this machine that the script's processes used
            disk_bytes (integer): the bytes of the files that the script has written
            assumed (list of texts): what was not computed but assumed
            proposals (list of texts): what would help
            notes (list of texts): what else to know
            seconds (number): how long the rehearsal took
        """
        return {
            "target": self.target.name,
            "script": self.script,
            "python": self.python,
            "torch": self.torch,
            "stack": self.stack,
            "values": self.values,
            "end": self.end,
            "exit_status": self.exit_status,
            "error": self.error,
            "fits": self.fits,
            "finished": self.finished,
            "updates": self.updates,
            "total_updates": self.total_updates,
            "total_source": self.total_source,
            "devices": [device.json() for device in self.devices],
            "phases": [phase.json() for phase in self.phases],
            "out_of_memory": self.out_of_memory.json() if self.out_of_memory else None,
            "survived_out_of_memory": self.survived_out_of_memory,
            "holders": [holder.json() for holder in self.holders],
            "time": self.time.json() if self.time else None,
            "total_seconds": self.total_seconds[0] if self.total_seconds else None,
            "sessions": self.sessions,
            "ends_in_time": self.ends_in_time,
            "host_peak_bytes": self.host_peak_bytes,
            "disk_bytes": self.disk_bytes,
            "assumed": list(self.assumed),
            "proposals": list(self.proposals),
            "notes": list(self.notes),
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        return text(self)
