"""Out of memory: what PyTorch's allocator was asked for, by whom, and who held the rest.

The observer is the allocator's own: it is called when no memory can be found, before Python sees an exception. So it
is called also for an error that the script catches, or that another library turns into one of its own.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import torch

from . import frames
from .events import Events
from .holders import holders
from .phases import ForwardHook, Phases
from .quiet import quiet
from .updates import Updates

MOST_EVENTS = 200
MOST_WITH_HOLDERS = 20  # a snapshot of 5,000 live blocks takes a second


class OutOfMemory:
    """Records which line allocated each live block, and writes an event when there is no memory for another one."""

    def __init__(self, events: Events, phases: Phases, forward: ForwardHook, updates: Updates) -> None:
        self._events = events
        self._phases = phases
        self._forward = forward
        self._updates = updates
        self._history = "none"
        self._written = 0

    def attach(self) -> None:
        """Begin to observe the allocator, once the script has initialized CUDA: to do so would initialize it."""
        self._written = 0
        quiet(self._record)()
        observer = quiet(self._observe)

        def out_of_memory(device: int, requested: int, _total: int, free: int) -> None:
            observer(device, requested, free)

        attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
        if attach is not None:
            quiet(attach)(out_of_memory)

    def _record(self) -> None:
        """Keep the Python frames that allocated each live block; of freed ones nothing is kept."""
        memory: Any = torch.cuda.memory
        if self._history != "none" or not hasattr(torch._C, "_cuda_record_memory_history"):
            return
        record = memory._record_memory_history
        record("state", context="state", stacks="python")
        self._history = "own"

        @functools.wraps(record)
        def recorded_by_the_script(*args: Any, **kwargs: Any) -> Any:
            self._history = "script"
            return record(*args, **kwargs)

        if hasattr(record, "__signature__"):
            recorded_by_the_script.__signature__ = record.__signature__  # type: ignore[attr-defined]
        memory._record_memory_history = recorded_by_the_script

    def _observe(self, device: int, requested: int, free: int) -> None:
        self._forward.arm()  # the script may go on with something else
        self._written += 1
        if self._written > MOST_EVENTS:
            return
        stack = frames.stack(sys._getframe(1))
        if self._updates.backward_thread is not None and not frames.has_own(stack):
            stack += frames.stack(sys._current_frames().get(self._updates.backward_thread))
        statistics: Any = quiet(torch._C._cuda_memoryStats)(device) or {}
        holders = quiet(self._holders)(device) if self._written <= MOST_WITH_HOLDERS else None
        self._events.write(
            "out_of_memory",
            device=device,
            update=self._phases.update,
            phase=self._phases.current,
            requested_bytes=requested,
            allocated_bytes=_current(statistics, "allocated_bytes"),
            reserved_bytes=_current(statistics, "reserved_bytes"),
            free_bytes=free,
            in_backward=self._updates.backward_thread is not None,
            history=self._history,
            stack=stack,
            own_frame=next((frame for frame in stack if frames.is_own(frame["file"])), None),
            holders=holders or [],
        )

    def _holders(self, device: int) -> list[dict[str, Any]]:
        return holders(_snapshot(), device, self._updates.backward_line)


def _snapshot() -> Any:
    """Return the allocator's state, without importing PyTorch's compiler.

    To name the lines of compiled code, PyTorch asks for `torch._inductor`, which imports it: for seconds, and with
    some hundred megabytes.
    """
    imported = "_inductor" in vars(torch)
    if not imported:
        vars(torch)["_inductor"] = types.SimpleNamespace()
    try:
        return torch.cuda.memory._snapshot()
    finally:
        if not imported:
            vars(torch).pop("_inductor", None)


def _current(statistics: dict[str, Any], name: str) -> int | None:
    value = statistics.get(name, {}).get("all", {}).get("current")
    return value if isinstance(value, int) else None
