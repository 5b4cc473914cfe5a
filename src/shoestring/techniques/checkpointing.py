"""Activation checkpointing of any model: a block keeps what goes into it, the rest is computed again in backward."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from shoestring.errors import UsageError
from shoestring.recipe.parts import Parts
from shoestring.techniques import norms, trees
from shoestring.techniques.slots import buffers, put

_SWITCHED = "GradientCheckpointingLayer"
"""transformers' class of layers that have a switch of their own (`modeling_layers.py`), known by its name."""


def apply(model: nn.Module, recipe: object, setting: str | None) -> int:
    """Have as many of the model's blocks as the setting says computed again; returns how many these are.

    Names in the `state_dict` stay. Raises UsageError as `chosen` does.
    """
    again = chosen(model, recipe, setting)
    for block in again:
        _compute_again(block)
    return len(again)


def chosen(model: nn.Module, recipe: object, setting: str | None) -> list[nn.Module]:
    """The blocks to compute again; `setting` is one of `Settings.checkpointing`.

    Raises UsageError where there are no blocks, or fewer than asked for.
    """
    if setting in (None, "no", "0"):
        return []
    found = blocks(model, recipe)
    if not found:
        raise UsageError(
            f"checkpointing={setting}: {type(model).__name__} has no blocks that could be computed again",
            hint="checkpointing=no, or a recipe with blocks(model), a list of modules",
        )
    count = len(found) if setting == "full" else int(setting or 0)
    if count > len(found):
        raise UsageError(
            f"checkpointing={setting}: {type(model).__name__} has {len(found)} blocks", hint="checkpointing=full"
        )
    return found[:count]


def blocks(model: nn.Module, recipe: object) -> list[nn.Module]:
    """What can be computed again, the first to be so first.

    What the recipe's `blocks(model)` says; else transformers' layers with a switch of their own; else, of every list
    that lies in no block itself, the modules that are built of others and have a brother of the same class.
    """
    own = Parts.of(recipe).blocks
    if own is not None:
        return list(own(model))
    return _outermost(model, lambda module: [module] if is_switched(module) else []) or _outermost(model, _brothers)


def _outermost(module: nn.Module, choose: Callable[[nn.Module], list[nn.Module]]) -> list[nn.Module]:
    """What `choose` finds from here down, without looking into what it found."""
    found = choose(module)
    if module in found:
        return found
    for child in module.children():
        found += [] if child in found else _outermost(child, choose)
    return found


def _brothers(module: nn.Module) -> list[nn.Module]:
    if not isinstance(module, nn.ModuleList | nn.Sequential):
        return []
    built = [
        child
        for child in module
        if type(child).forward is not nn.Module.forward  # a list inside a list is no block
        and any(True for _ in child.children())
        and any(True for _ in child.parameters())
    ]
    classes = Counter(map(type, built))
    return [child for child in built if classes[type(child)] > 1]


def is_switched(module: nn.Module) -> bool:
    """Whether it is a layer of transformers with a switch of its own for being computed again."""
    return any(kind.__name__ == _SWITCHED for kind in type(module).__mro__)


def _compute_again(block: nn.Module) -> None:
    changed: Any = block
    if is_switched(block) and "forward" not in vars(block):
        # Its own switch also leaves out the cache of keys and values, which would grow a second time.
        changed.gradient_checkpointing = True
        changed._gradient_checkpointing_func = functools.partial(_checkpointed, block)
        return
    forward = block.forward
    if is_computed_again(block):
        return  # a run that meets its memory's end asks for all blocks when some are done

    @functools.wraps(forward)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        return _checkpointed(block, functools.partial(_call, forward, args, kwargs), *trees.leaves((args, kwargs)))

    checkpointed.computed_again = True  # type: ignore[attr-defined]
    changed.forward = checkpointed


def is_computed_again(block: nn.Module) -> bool:
    """Whether the block's forward is one that backward runs again; not for a layer that uses a switch of its own."""
    return hasattr(block.forward, "computed_again")


def _call(forward: Callable[..., Any], args: Any, kwargs: Any, *_: Any) -> Any:
    return forward(*args, **kwargs)


def _checkpointed(block: nn.Module, function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)`, computed again in backward. From the tensors among `args` torch learns whose random state to
    keep, which it does not look for anywhere else (`torch/utils/checkpoint.py: get_device_states`)."""
    return checkpoint(
        function,
        *args,
        use_reentrant=False,
        context_fn=lambda: (contextlib.nullcontext(), _statistics_as_they_are(block)),
    )


@contextlib.contextmanager
def _statistics_as_they_are(block: nn.Module) -> Iterator[None]:
    """Running statistics count a batch once: the second forward changes copies that are dropped."""
    kept: list[tuple[nn.Module, str, Tensor]] = []
    for module in block.modules():
        if isinstance(module, norms.RUNNING) and module.training:
            kept += [(module, name, buffer) for name, buffer in buffers(module).items() if buffer is not None]
    for module, name, buffer in kept:
        put(module, name, buffer.clone())
    try:
        yield
    finally:
        for module, name, buffer in kept:
            put(module, name, buffer)
