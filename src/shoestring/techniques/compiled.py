"""Compilation of a model's blocks by torch: Triton kernels on a GPU, C++ on a CPU.

Each block is compiled separately, or the whole model if it has no blocks: equal blocks share their compiled code, which
takes a fraction of the time, and activation checkpointing remains outside of a block, where a run may still add it on
out-of-memory. Every shape is compiled separately: code for dynamic shapes would depend on the order of the shapes, and
a resumed run would not be bit-identical.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import warnings
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from shoestring.base.errors import RunError, UsageError
from shoestring.base.settings import Settings
from shoestring.techniques import checkpointing, deferred_compiler
from shoestring.techniques.recompiling import Limit

SHAPES = 16
"""The maximum number of shapes that a block is compiled for, in training and evaluation. Updates of equal microbatches
have two, the last update of an epoch two more, evaluation two; an out-of-memory adds as many. torch's default limit
is 8, after which it continues uncompiled and reports that only in its log."""

LEAST_CAPABILITY = (7, 0)
"""The lowest capability of a GPU that Triton compiles for (torch 2.13, `torch/utils/_triton.py` and
`_inductor/scheduler.py`)."""


def apply(model: nn.Module, recipe: object, settings: Settings, device: torch.device) -> int:
    """Have blocks compiled when they first run, if the settings say so; return the number of compiled modules.

    Apply it before checkpointing and after everything else. Names in the `state_dict` do not change.

    Raises UsageError if the machine or another setting does not allow compilation.
    """
    if settings.compile != "yes":
        return 0
    require(settings, device)
    deferred_compiler.copy_determinism_to_compiler()
    parts = checkpointing.blocks(model, recipe) or [model]
    limit = Limit(SHAPES, kinds=len({_kind(part) for part in parts}))
    with warnings.catch_warnings():
        # torch 2.13 imports its own deprecated modules.
        warnings.simplefilter("ignore", DeprecationWarning)
        for part in parts:
            _compile(part, limit)
    return len(parts)


def require(settings: Settings, device: torch.device) -> None:
    """Raise UsageError if the machine lacks what compilation needs."""
    if settings.offload == "parameters":
        raise UsageError(
            "compile=yes: offload=parameters moves weights while a block runs, which cannot be compiled",
            hint="compile=no, or offload=optimizer",
        )
    if device.type != "cuda":
        if compiler() is None:
            raise UsageError(
                f"compile=yes: there is no C++ compiler {_compiler_command()!r} on this machine",
                hint="apt install g++, or set CXX to an installed compiler, or compile=no",
            )
        return
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        raise UsageError(
            f"compile=yes: Triton needs compute capability {_capability_text(LEAST_CAPABILITY)}, "
            f"{torch.cuda.get_device_name(device)} has {_capability_text(capability)}",
            hint="compile=no",
        )
    if find_spec("triton") is None:
        raise UsageError("compile=yes: not installed: triton", hint="pip install triton, or compile=no")


def toolchain(settings: Settings, device: torch.device) -> str | None:
    """Return the version of the compiler, which decides the bits of compiled code; None without compilation."""
    if settings.compile != "yes":
        return None
    if device.type != "cuda":
        path = compiler()
        if not path:
            return None
        # In a group of its own: Ctrl-C, at which training saves, would end it without an answer.
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, process_group=0)
        return answer.stdout.partition("\n")[0]
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"triton {version('triton')}"
    except PackageNotFoundError:
        return None


def compiler() -> str | None:
    """Return the path of the C++ compiler that torch calls (`torch/_inductor/config.py: cpp.cxx`), or None."""
    return shutil.which(_compiler_command())


def _compiler_command() -> str:
    return os.environ.get("CXX", "g++")


def _compile(part: nn.Module, limit: Limit) -> None:
    # transformers' layers wrap their forward in checkpointing code, which torch cannot compile.
    switchable = checkpointing.is_switchable(part)
    unwrapped = getattr(type(part).forward, "__wrapped__", None) if switchable else None
    forward = functools.partial(unwrapped, part) if unwrapped else part.forward
    run = limit.guard(torch.compile(forward, dynamic=False), (*_kind(part), part.training), _too_many_shapes)

    @functools.wraps(part.forward)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        if switchable and part.training and torch.is_grad_enabled():
            # As in the wrapper: a recomputed layer would add to its cache a second time.
            kwargs = checkpointing.without_cache(kwargs)
        return run(*args, **kwargs)

    changed: Any = part
    changed.forward = compiled


def _too_many_shapes(shapes: int) -> RunError:
    return RunError(
        f"a block was compiled for {shapes} shapes, which is the limit, and needs one more",
        problems=["the shapes that would run uncompiled depend on the order of the shapes"],
        hint="pad samples to a few lengths, or use compile=no with --allow-inexact",
    )


def _kind(part: nn.Module) -> tuple[Any, ...]:
    """Return a key that equal blocks share."""
    return type(part), tuple(parameter.shape for parameter in part.parameters())


def _capability_text(capability: tuple[int, ...]) -> str:
    return ".".join(map(str, capability))
