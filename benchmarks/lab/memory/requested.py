"""The requests to the allocator in the order in which they are made: those of a GPU, and those of a trace.

Each is a pair of the bytes and of what requests them.
"""

from collections.abc import Sequence
from typing import Any

import torch

from shoestring.hardware.catalog import Device
from shoestring.planning.estimate import requests
from shoestring.planning.trace.record import Alloc, Op, Trace

Requested = list[tuple[int, str]]


def record() -> None:
    """Begin to record the requests of this process to PyTorch's allocator."""
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(enabled="all", context="alloc", stacks="python")


def recorded(device: torch.device) -> Requested:
    """Return the requests since `record`, each with the innermost line of Python outside of PyTorch."""
    snapshot: Any = torch.cuda.memory._snapshot()
    events = snapshot["device_traces"][device.index or 0]
    return [(event["size"], _line(event["frames"])) for event in events if event["action"] == "alloc"]


def estimated(trace: Trace, device: Device, updates: int) -> Requested:
    """Return the requests of so many updates of a trace, each with the operator or the part that requests it."""
    operators: dict[object, str] = {}
    waiting: list[int] = []
    repeated = requests.repeat_second_update(requests.accumulate_in_place(trace), updates - 2)
    for event in repeated.events:
        if isinstance(event, Alloc):
            waiting.append(event.storage)
        elif isinstance(event, Op):
            operators |= dict.fromkeys(waiting, event.name)
            waiting = []
    return [
        (request.bytes, operators.get(request.key, request.part))
        for request in requests.requests(repeated, device)
        if request.bytes is not None
    ]


def _line(frames: Sequence[dict[str, Any]]) -> str:
    own = (frame for frame in frames if "/torch/" not in frame["filename"] and frame["filename"].endswith(".py"))
    return next((f"{frame['filename'].rpartition('site-packages/')[2]}:{frame['line']}" for frame in own), "")
