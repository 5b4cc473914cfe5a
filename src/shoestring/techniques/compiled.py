"""Blocks compiled by torch: Triton's kernels on a GPU, C++ on a CPU.

Each block by itself, the whole model where it has none: equal blocks share what was compiled, which is then there in a
fraction of the time, and activation checkpointing stays around a block, where a run that meets its memory's end may
still put it. Every shape is compiled for itself: code for any size would depend on which size came first, and a run
that was continued would end in other bits.
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

from shoestring.errors import RunError, UsageError
from shoestring.settings import Settings
from shoestring.techniques import checkpointing, uncompiled
from shoestring.techniques.recompiling import Limit

SHAPES = 16
"""That a block may be compiled for, training and evaluation together. Updates of equal microbatches have two, the last
of an epoch two more, evaluation two; an out-of-memory adds as many. torch's own limit is 8, after which it goes on
uncompiled and says so in its log only."""

LEAST_CAPABILITY = (7, 0)
"""Of a GPU that Triton compiles for (torch 2.13, `torch/utils/_triton.py` and `_inductor/scheduler.py`)."""

_NO_CACHE = {"use_cache": False, "past_key_values": None, "layer_past": None}
"""Of keys and values, as transformers' layers know it."""


def apply(model: nn.Module, recipe: object, settings: Settings, device: torch.device) -> int:
    """Have what the setting says compiled when it first runs; returns how many modules these are.

    To be done before checkpointing and after all else. Names in the `state_dict` stay.

    Raises UsageError for what the machine, or another setting, does not let be compiled.
    """
    if settings.compile != "yes":
        return 0
    require(settings, device)
    uncompiled.tell_what_is_deterministic()
    parts = checkpointing.blocks(model, recipe) or [model]
    limit = Limit(SHAPES, kinds=len({_kind(part) for part in parts}))
    with warnings.catch_warnings():
        # torch 2.13 imports parts of its own that it calls deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        for part in parts:
            _compile(part, limit)
    return len(parts)


def require(settings: Settings, device: torch.device) -> None:
    """Raises UsageError where the machine lacks what compiling needs."""
    if settings.offload == "parameters":
        raise UsageError(
            "compile=yes: offload=parameters moves weights while a block runs, which is not compiled",
            hint="compile=no, or offload=optimizer",
        )
    if device.type != "cuda":
        if compiler() is None:
            raise UsageError(
                f"compile=yes: there is no C++ compiler {_command()!r} here",
                hint="apt install g++, or set CXX to the one there is, or compile=no",
            )
        return
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        raise UsageError(
            f"compile=yes: Triton needs compute capability {_text(LEAST_CAPABILITY)}, "
            f"{torch.cuda.get_device_name(device)} has {_text(capability)}",
            hint="compile=no",
        )
    if find_spec("triton") is None:
        raise UsageError("compile=yes: not installed: triton", hint="pip install triton, or compile=no")


def toolchain(settings: Settings, device: torch.device) -> str | None:
    """What the bits of compiled code depend on besides torch; None where nothing is compiled."""
    if settings.compile != "yes":
        return None
    if device.type != "cuda":
        path = compiler()
        return path and subprocess.run([path, "--version"], capture_output=True, text=True).stdout.partition("\n")[0]
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"triton {version('triton')}"
    except PackageNotFoundError:
        return None


def compiler() -> str | None:
    """The C++ compiler that torch would call (`torch/_inductor/config.py: cpp.cxx`), where there is one."""
    return shutil.which(_command())


def _command() -> str:
    return os.environ.get("CXX", "g++")


def _compile(part: nn.Module, limit: Limit) -> None:
    # transformers' layers have their own switch for checkpointing around what they do, which torch cannot look into.
    switched = checkpointing.is_switched(part)
    plain = getattr(type(part).forward, "__wrapped__", None) if switched else None
    forward = functools.partial(plain, part) if plain else part.forward
    run = limit.on(torch.compile(forward, dynamic=False), (*_kind(part), part.training), _too_many)

    @functools.wraps(part.forward)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        if switched and part.training and torch.is_grad_enabled():
            # What the switch does: computed again, a layer would add to its cache a second time.
            kwargs |= {name: without for name, without in _NO_CACHE.items() if name in kwargs}
        return run(*args, **kwargs)

    changed: Any = part
    changed.forward = compiled


def _too_many(shapes: int) -> RunError:
    return RunError(
        f"a block was compiled for {shapes} shapes and is asked for one more",
        problems=["what would run uncompiled from here on depends on which shapes came first"],
        hint="samples padded to a few lengths, or compile=no with --allow-inexact",
    )


def _kind(part: nn.Module) -> tuple[Any, ...]:
    """What equal blocks have in common."""
    return type(part), tuple(parameter.shape for parameter in part.parameters())


def _text(capability: tuple[int, ...]) -> str:
    return ".".join(map(str, capability))
