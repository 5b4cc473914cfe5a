"""Requests for device memory that fail on request, and the places in the code where they did."""

import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from shoestring.training.engine.memory import out_of_memory

ALWAYS = 1 << 62
"""A number of failures that no process reaches."""
_SOURCES = str(Path(__file__).parents[3] / "src")
_TESTS = str(Path(__file__).parents[2])
_LIBRARIES = Path(torch.__file__).parents[1]
_SEEN = "seen_by_campaign"
"""The attribute of errors that were observed: the event is repeated in each frame that they pass through."""
_TOOL = 4
"""The number under which this module observes exceptions; 0 to 3 and 5 are for debuggers, coverage and profilers."""


@dataclass
class Requests:
    """What became of the requests for memory in a context."""

    count: int = 0
    """How many there were; known at the end of the context."""
    places: list[str] = field(default_factory=list)
    """Where in Shoestring, or in a recipe, those that failed were raised, with the line of torch below it."""


@cache
def _fail_at() -> Any:
    runtime = ctypes.CDLL(f"libcudart.so.{str(torch.version.cuda).split('.')[0]}")
    function = runtime.simulator_fail_at
    function.argtypes, function.restype = [ctypes.c_uint64, ctypes.c_uint64], ctypes.c_uint64
    return function


@contextmanager
def failing(first: int, count: int = 1, *, each: bool = False) -> Iterator[Requests]:
    """Let `count` requests fail, beginning with number `first` of the context; 0: none.

    The simulator lets a request of the same size fail again, because PyTorch's caching allocator repeats one that has
    failed. If `each` allocation is a request, none is repeated: then the simulator begins anew after each failure.
    """
    requests = Requests()
    remaining = count

    def fail(place: str) -> None:
        nonlocal remaining
        requests.places.append(place)
        if each:
            remaining = max(0, remaining - 1)
            requests.count += _fail_at()(1 if remaining else 0, remaining)

    with _observing(fail):
        _fail_at()(first, count)
        try:
            yield requests
        finally:
            requests.count += _fail_at()(0, 0)


@contextmanager
def every_allocation_is_a_request() -> Iterator[None]:
    """Let PyTorch's allocator keep nothing, so that each tensor is a request of its own.

    An error is then the driver's ("CUDA error: out of memory") instead of an OutOfMemoryError.
    """
    torch.cuda.empty_cache()
    torch.cuda.init()  # before it the call has no effect
    torch.cuda.caching_allocator_enable(False)
    try:
        yield
    finally:
        torch.cuda.caching_allocator_enable(True)


def free_bytes(expected: int | None = None) -> int:
    """Return the free memory of the device, without garbage and cached blocks, after at most a second in which it may
    become what is `expected`: autograd's thread frees the graph of a backward that failed after the error is raised.
    """
    give_up_at = time.monotonic() + 1
    while True:
        gc.collect()
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        if expected is None or free == expected or time.monotonic() > give_up_at:
            return free
        time.sleep(0.01)


@contextmanager
def _observing(act: Callable[[str], None]) -> Iterator[None]:
    """Call `act` with the place of each out-of-memory error that is raised in Python code, once."""
    monitoring: Any = vars(sys)["monitoring"]  # from Python 3.12 on, as the laboratory has

    def observe(_code: CodeType, _offset: int, error: BaseException) -> None:
        if isinstance(error, RuntimeError) and not hasattr(error, _SEEN) and out_of_memory(error):
            setattr(error, _SEEN, True)
            act(_place(sys._getframe(1)))

    monitoring.use_tool_id(_TOOL, "out-of-memory")
    monitoring.register_callback(_TOOL, monitoring.events.RAISE, observe)
    monitoring.set_events(_TOOL, monitoring.events.RAISE)
    try:
        yield
    finally:
        monitoring.set_events(_TOOL, 0)
        monitoring.register_callback(_TOOL, monitoring.events.RAISE, None)
        monitoring.free_tool_id(_TOOL)


def _place(frame: FrameType | None) -> str:
    """Return the innermost line of Shoestring or of a test's recipe, and that of a library below it."""
    library = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith((_SOURCES, _TESTS)):
            relative = os.path.relpath(name, _SOURCES if name.startswith(_SOURCES) else _TESTS)
            return f"{relative}:{frame.f_lineno} {frame.f_code.co_qualname}" + (f" > {library}" if library else "")
        if not library:
            library = f"{os.path.relpath(name, _LIBRARIES)}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return library or "?"
