"""Deferred loading of torch's compiler until it is needed.

Optimizers, activation checkpointing and fake tensors import `torch._dynamo` for a function that does nothing without
compilation, for a setting, or for the name of a tensor: this costs a second of processor time and 73 MB in every
process that trains or traces. Stand-in modules provide these few attributes. Access to any other attribute, in
particular by `torch.compile`, loads the compiler and replaces the stand-ins.

This relies on private parts of torch, which are the same in torch 2.10 to 2.13: `torch._dynamo` is loaded on first use;
its `disable` and `graph_break` have no effect outside of compiled code; `torch/_dynamo/config.py` needs no other part
of it; without symbolic shapes a `ConstantSource` is only a name. If the settings cannot be loaded separately, the
compiler is loaded as without this module: the start is slower, and nothing else changes.
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
"""Host memory of the compiler and its dependencies (torch 2.13 on x86-64, resident memory before and after)."""

_DISABLED_ATTRIBUTE = "__dynamo_disable"
"""The attribute of a function in which `torch/_compile.py: _disable_dynamo` caches the result of `disable`."""


def defer_compiler() -> None:
    """Install the stand-ins, unless the compiler is already loaded."""
    if COMPILER in sys.modules:
        return
    config = _load_config()
    if config is not None:
        stand_in = _Compiler(config)
        sys.modules |= {COMPILER: stand_in, _SOURCE: stand_in.source}
        package: Any = torch
        package._dynamo = stand_in


def is_compiler_loaded() -> bool:
    """Return whether the compiler itself is loaded."""
    return COMPILER in sys.modules and not isinstance(sys.modules[COMPILER], _Compiler)


def _load_config() -> types.ModuleType | None:
    """Load the compiler's settings separately; return None if that is not possible."""
    path = Path(torch.__file__).parent / "_dynamo" / "config.py"
    spec = importlib.util.spec_from_file_location(_CONFIG, path)
    if not path.is_file() or spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_CONFIG] = module
    try:
        spec.loader.exec_module(module)
    except Exception:  # noqa: BLE001 - for any error the compiler is loaded instead
        del sys.modules[_CONFIG]
        return None
    return module


class _StandIn(types.ModuleType):
    """A module with a few attributes that is replaced by the real module of its name on access to any other."""

    def __getattr__(self, name: str) -> Any:
        # Code that iterates over all modules reads such names, which must not load the compiler. The import of a
        # submodule reads the path of its package.
        if name.startswith("__") and (name != "__path__" or self.__name__ != COMPILER):
            raise AttributeError(f"{self.__name__} is not loaded and has no {name}")
        _load_compiler()
        return getattr(importlib.import_module(self.__name__), name)


class _Compiler(_StandIn):
    def __init__(self, config: types.ModuleType) -> None:
        super().__init__(COMPILER)
        self.config, self.source = config, _Source(_SOURCE)
        self._unchanged_functions: weakref.WeakSet[types.FunctionType] = weakref.WeakSet()

    def graph_break(self, msg: str = "") -> None:
        """Do nothing, because nothing is compiled."""

    def disable(self, function: Any = None, *arguments: Any, **named: Any) -> Any:
        """Return the function unchanged. `forget_functions` drops the cached result when the compiler is loaded."""
        if not isinstance(function, types.FunctionType):
            return _load_compiler().disable(function, *arguments, **named)
        self._unchanged_functions.add(function)
        return function

    def forget_functions(self) -> None:
        """Drop the cached results of `disable`, so that torch calls the compiler's `disable` for these functions."""
        for function in self._unchanged_functions:
            vars(function).pop(_DISABLED_ATTRIBUTE, None)


class _Source(_StandIn):
    """A stand-in for the module of tensors' sources, which only compilation uses."""

    class ConstantSource:
        """The name of a fake tensor."""

        def __init__(self, source_name: str) -> None:
            self.source_name = source_name

    class RandomValueSource:
        """A class for `isinstance` checks, which is never instantiated."""


def _load_compiler() -> Any:
    """Replace the stand-ins by the compiler and return it."""
    stand_in = sys.modules.get(COMPILER)
    if isinstance(stand_in, _Compiler):
        del sys.modules[COMPILER], sys.modules[_SOURCE], torch._dynamo
        stand_in.forget_functions()
        copy_determinism_to_compiler()
    return importlib.import_module(COMPILER)


def copy_determinism_to_compiler() -> None:
    """Set the compiler's own determinism setting to torch's: `torch.set_deterministic_debug_mode`, unlike
    `use_deterministic_algorithms`, does not load the compiler to set it.
    """
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(True, warn_only=torch.is_deterministic_algorithms_warn_only_enabled())
