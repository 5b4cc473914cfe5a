"""The modules of the two parts of a model, which have their inputs on the device of their part.

A block has another class, derived from its own, so that its inputs are copied outside of everything that techniques
and transformers do around its forward: a block that is recomputed in backward has the copies as its inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from shoestring.techniques.pipeline.crossing import Crossing


class PlacedBlock(nn.Module):
    """A block of one of the parts. What runs in it computes on its device alone."""

    _crossing: Crossing
    _is_second: bool

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        crossing = self._crossing
        args, kwargs = crossing.enter((args, kwargs), is_second=self._is_second)
        try:
            with on_device(crossing.second if self._is_second else crossing.first):
                return super().__call__(*args, **kwargs)
        finally:
            crossing.leave()


def is_in_second_part(block: nn.Module) -> bool:
    """Return whether a block is in the second part of a divided model."""
    return isinstance(block, PlacedBlock) and block._is_second


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which kernels that torch does not launch itself, such as those of Triton, run on a GPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def place_blocks(blocks: Iterable[nn.Module], crossing: Crossing, *, is_second: bool) -> None:
    """Let blocks have their inputs on the device of their part."""
    for block in blocks:
        placed: Any = block
        placed.__class__ = _placed_class(type(block), crossing)
        vars(block)["_is_second"] = is_second


def _placed_class(kind: type[nn.Module], crossing: Crossing) -> type[nn.Module]:
    if kind not in crossing.classes:  # blocks of one class stay blocks of one class
        names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
        crossing.classes[kind] = type(kind.__name__, (PlacedBlock, kind), {**names, "_crossing": crossing})
    return crossing.classes[kind]


def place_module(module: nn.Module, crossing: Crossing, *, is_second: bool) -> None:
    """Let a module outside of the blocks have its inputs on the device of its part."""

    def enter(_: nn.Module, args: Any, kwargs: Any) -> Any:
        inputs = crossing.enter((args, kwargs), is_second=is_second)
        crossing.leave()
        return inputs

    module.register_forward_pre_hook(enter, with_kwargs=True)


def bring_outputs_home(model: nn.Module, crossing: Crossing) -> None:
    """Let the outputs of the whole model be on the first device; in an update they stay where its loss follows."""
    forward = model.forward

    @functools.wraps(forward)
    def forward_and_return(*args: Any, **kwargs: Any) -> Any:
        if crossing.trains:
            return forward(*args, **kwargs)
        with crossing.passing(trains=False):
            outputs = forward(*args, **kwargs)
        return _home(outputs, crossing)

    changed: Any = model
    forward_and_return.crossing = crossing  # type: ignore[attr-defined]
    changed.forward = forward_and_return


def _home(outputs: Any, crossing: Crossing) -> Any:
    if isinstance(outputs, dict) and type(outputs) is not dict:  # an output of transformers
        for name, value in outputs.items():
            outputs[name] = crossing.moved(value, crossing.first)
        return outputs
    return crossing.moved(outputs, crossing.first)


def crossing_of(model: nn.Module) -> Crossing | None:
    """Return the boundary of a model that is divided, None for another one."""
    forward = getattr(model, "forward", None)  # for each microbatch of any model, so without a search
    crossing = getattr(forward, "crossing", None)
    return crossing if isinstance(crossing, Crossing) else None
