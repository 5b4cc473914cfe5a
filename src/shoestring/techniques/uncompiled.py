"""torch without its compiler, until somebody has a use for it.

Optimizers, activation checkpointing and fake tensors load `torch._dynamo` for a function that does nothing where
nothing is compiled, for a setting, or for the name of a tensor: a second of processor time and 73 MB in every process
that trains or traces. Here stand-ins have these few answers. Whoever asks them for anything else, `torch.compile` above
all, loads the compiler and has it from then on, as has everybody.

Private parts, written for torch 2.6 to 2.13 and tested with 2.13: that `torch._dynamo` is loaded on first use; that
its `disable` and `graph_break` change nothing outside of compiled code; that `torch/_dynamo/config.py` needs no other
part of it; that without symbolic shapes a `ConstantSource` is only a name. Where the settings cannot be had alone, and
for every other question, the compiler is loaded as before: slower to begin, all else alike.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
import weakref
from pathlib import Path
from typing import Any

import torch

COMPILER = "torch._dynamo"
_CONFIG, _SOURCE = f"{COMPILER}.config", f"{COMPILER}.source"
BYTES = 73_000_000
"""Of host memory, that it takes with what it loads (torch 2.13 on x86-64, resident before and after)."""

_NOTE = "__dynamo_disable"
"""Where `torch/_compile.py: _disable_dynamo` notes at a function what the compiler made of it."""


def spare_the_compiler() -> None:
    """Have torch go without it from now on, where nobody has loaded it."""
    if COMPILER in sys.modules:
        return
    config = _config()
    if config is not None:
        stand_in = _Compiler(config)
        sys.modules |= {COMPILER: stand_in, _SOURCE: stand_in.source}
        package: Any = torch
        package._dynamo = stand_in


def loaded() -> bool:
    """Whether the compiler itself is there."""
    return COMPILER in sys.modules and not isinstance(sys.modules[COMPILER], _Compiler)


def _config() -> types.ModuleType | None:
    """The compiler's settings by themselves; None where they are not to be had so."""
    path = Path(torch.__file__).parent / "_dynamo" / "config.py"
    spec = importlib.util.spec_from_file_location(_CONFIG, path)
    if not path.is_file() or spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_CONFIG] = module
    try:
        spec.loader.exec_module(module)
    except Exception:  # noqa: BLE001 - whatever they lack, the compiler has it
        del sys.modules[_CONFIG]
        return None
    return module


class _Answering(types.ModuleType):
    """A module with a few answers in place of the one of its name."""

    def __getattr__(self, name: str) -> Any:
        # Whoever goes through all modules asks for such names, and wants nothing of this one. A package is asked for
        # its path by who goes on to a module in it.
        if name.startswith("__") and (name != "__path__" or self.__name__ != COMPILER):
            raise AttributeError(f"{self.__name__} is not loaded and has no {name}")
        _load()
        return getattr(importlib.import_module(self.__name__), name)


class _Compiler(_Answering):
    def __init__(self, config: types.ModuleType) -> None:
        super().__init__(COMPILER)
        self.config, self.source = config, _Source(_SOURCE)
        self._left_alone: weakref.WeakSet[types.FunctionType] = weakref.WeakSet()

    def graph_break(self, msg: str = "") -> None:
        """Nothing is compiled that could break."""

    def disable(self, function: Any = None, *arguments: Any, **named: Any) -> Any:
        """The function as it is. What is noted at it is forgotten when the compiler comes, which then is asked."""
        if not isinstance(function, types.FunctionType):
            return _load().disable(function, *arguments, **named)
        self._left_alone.add(function)
        return function

    def leave(self) -> None:
        for function in self._left_alone:
            vars(function).pop(_NOTE, None)


class _Source(_Answering):
    """Where a tensor comes from, which matters to what compiles it."""

    class ConstantSource:
        """A name that a fake tensor is given."""

        def __init__(self, source_name: str) -> None:
            self.source_name = source_name

    class RandomValueSource:
        """None is of this kind."""


def _load() -> Any:
    """The compiler, in its own place."""
    stand_in = sys.modules.get(COMPILER)
    if isinstance(stand_in, _Compiler):
        del sys.modules[COMPILER], sys.modules[_SOURCE], torch._dynamo
        stand_in.leave()
        tell_what_is_deterministic()
    return importlib.import_module(COMPILER)


def tell_what_is_deterministic() -> None:
    """Have the compiler keep to deterministic kernels where torch does: it has a setting of its own for that, which
    `torch.set_deterministic_debug_mode`, unlike `use_deterministic_algorithms`, does not load it to set.
    """
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(True, warn_only=torch.is_deterministic_algorithms_warn_only_enabled())
