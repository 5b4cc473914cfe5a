"""What runs inside of a process on a simulated GPU: it observes updates, phases, files, and what runs out of memory.

The simulator loads this package from its folder when the process uses a device for the first time, whatever Python and
whatever packages there are: it needs the standard library and PyTorch only. It never raises an exception into the
script but `SystemExit`, where a number of updates was asked for, and calls no function of CUDA before the script does.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from typing import Any

_started = False


def start() -> None:
    """Begin to observe this process; a second call does nothing, also in a process that was forked from it."""
    global _started
    torch: Any = sys.modules.get("torch")
    if _started or torch is None:
        return
    if getattr(torch.__spec__, "_initializing", False):
        _start_after_import(torch.__spec__)
        return
    _started = True
    from .quiet import quiet

    quiet(_start)()


def _start() -> None:
    from .process import observe

    updates = os.environ.get("SHOESTRING_SIMULATOR_UPDATES", "")
    observe(
        os.environ.get("SHOESTRING_SIMULATOR_FOLDER"),
        os.environ.get("SHOESTRING_SIMULATOR_LIBRARIES"),
        int(updates) if updates.isdigit() and int(updates) else None,
    )


def _start_after_import(spec: ModuleSpec) -> None:
    """Start when PyTorch, which is being imported, is complete: Python notes that in this attribute of the module."""

    class Imported(ModuleSpec):
        @property
        def _initializing(self) -> bool:
            return True

        @_initializing.setter
        def _initializing(self, value: bool) -> None:
            spec.__class__ = ModuleSpec
            spec.__dict__["_initializing"] = value
            start()

    spec.__class__ = Imported
