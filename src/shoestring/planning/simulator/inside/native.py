"""The functions of the simulator's own library, which are told the phase and the update."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

FORWARD, BACKWARD, OPTIMIZER = 0, 1, 2
"""What of an update is under way."""


class Native:
    """The library `libshoestring_torch.so`, or nothing where it is not found."""

    def __init__(self, folder: str | None) -> None:
        library: Any = None
        if folder:
            try:  # the interpreter's lock is kept, since the functions only store a number
                library = ctypes.PyDLL(f"{folder}/libshoestring_torch.so")
            except OSError:
                library = None
        self.set_phase = _function(library, "simulator_set_phase", ctypes.c_int)
        self.set_update = _function(library, "simulator_set_update", ctypes.c_int64)
        self.set_step = _function(library, "simulator_set_step", ctypes.c_int)


def _function(library: Any, name: str, argument: Any) -> Callable[[int], None]:
    function = getattr(library, name, None)
    if function is None:
        return lambda _: None
    function.argtypes, function.restype = [argument], None
    return function  # type: ignore[no-any-return]
