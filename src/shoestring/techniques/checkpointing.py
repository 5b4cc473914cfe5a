"""Activation checkpointing of any model: a block saves only its inputs; its activations are recomputed in backward."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from shoestring.base.errors import UsageError
from shoestring.recipe.parts import Parts
from shoestring.techniques import fp32_modules, norms, trees
from shoestring.techniques.slots import buffers, set_buffer

_SWITCHABLE = "GradientCheckpointingLayer"
"""The name of transformers' class of layers that implement gradient checkpointing (`modeling_layers.py`)."""
_NO_CACHE = {"use_cache": False, "past_key_values": None, "layer_past": None}
"""Arguments that disable the cache of keys and values in transformers' layers."""


def apply(model: nn.Module, recipe: object, setting: str | None) -> int:
    """Checkpoint as many of the model's blocks as the setting says; return their number.

    Names in the `state_dict` do not change. Raises UsageError as `choose_blocks` does.
    """
    chosen = choose_blocks(model, recipe, setting)
    for block in chosen:
        _checkpoint_block(block)
    return len(chosen)


def choose_blocks(model: nn.Module, recipe: object, setting: str | None) -> list[nn.Module]:
    """Return the blocks to checkpoint; `setting` is a value of `Settings.checkpointing`.

    Raises UsageError if the model has no blocks, or fewer than requested.
    """
    if setting in (None, "no", "0"):
        return []
    available = blocks(model, recipe)
    if not available:
        raise UsageError(
            f"checkpointing={setting}: {type(model).__name__} has no blocks that could be recomputed",
            hint="use checkpointing=no, or define blocks(model) in the recipe, which returns a list of modules",
        )
    count = len(available) if setting == "full" else int(setting or 0)
    if count > len(available):
        raise UsageError(
            f"checkpointing={setting}: {type(model).__name__} has {len(available)} blocks", hint="checkpointing=full"
        )
    return available[:count]


def blocks(model: nn.Module, recipe: object) -> list[nn.Module]:
    """Return the modules that can be checkpointed, in the order in which they are.

    These are the recipe's `blocks(model)`; else the layers of transformers that implement checkpointing; else, for
    every list of modules outside of a block, the modules that have children and a sibling of the same class.
    """
    own = Parts.from_recipe(recipe).learning.blocks
    if own is not None:
        return list(own(model))
    return _find_outermost(model, lambda module: [module] if is_switchable(module) else []) or _find_outermost(
        model, _repeated_children
    )


def _find_outermost(module: nn.Module, select: Callable[[nn.Module], list[nn.Module]]) -> list[nn.Module]:
    """Return the modules that `select` returns for `module` and its descendants, except inside of selected modules."""
    selected = select(module)
    if module in selected:
        return selected
    for child in module.children():
        selected += [] if child in selected else _find_outermost(child, select)
    return selected


def _repeated_children(module: nn.Module) -> list[nn.Module]:
    if not isinstance(module, nn.ModuleList | nn.Sequential):
        return []
    composite = [
        child
        for child in module
        if type(child).forward is not nn.Module.forward  # a list inside a list is not a block
        and any(True for _ in child.children())
        and any(True for _ in child.parameters())
    ]
    classes = Counter(map(type, composite))
    return [child for child in composite if classes[type(child)] > 1]


def is_switchable(module: nn.Module) -> bool:
    """Return whether the module is a layer of transformers that implements checkpointing itself."""
    return any(kind.__name__ == _SWITCHABLE for kind in type(module).__mro__)


def _checkpoint_block(block: nn.Module) -> None:
    changed: Any = block
    if is_switchable(block) and not fp32_modules.is_replaced_otherwise(block):
        # The layer's own implementation also disables the cache of keys and values, which recomputation would extend.
        changed.gradient_checkpointing = True
        changed._gradient_checkpointing_func = functools.partial(_run_checkpointed, block)
        return
    forward = block.forward
    if is_recomputed(block):
        return  # on out-of-memory all blocks are checkpointed, some of which may be already

    @functools.wraps(forward)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        return _run_checkpointed(block, functools.partial(_call, forward, args, kwargs), *trees.leaves((args, kwargs)))

    checkpointed.is_recomputed = True  # type: ignore[attr-defined]
    changed.forward = checkpointed


def is_recomputed(block: nn.Module) -> bool:
    """Return whether backward recomputes the block's forward; False for a layer that implements checkpointing."""
    return hasattr(block.forward, "is_recomputed")


def without_cache(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a transformers' layer with the cache disabled: recomputation would extend it again."""
    return kwargs | {name: value for name, value in _NO_CACHE.items() if name in kwargs}


def _call(forward: Callable[..., Any], args: Any, kwargs: Any, *_: Any) -> Any:
    return forward(*args, **kwargs)


def _run_checkpointed(block: nn.Module, function: Callable[..., Any], *args: Any) -> Any:
    """Return `function(*args)`, recomputed in backward. torch saves the random state of the devices of the tensors in
    `args`, and of no other tensors (`torch/utils/checkpoint.py: get_device_states`)."""
    return checkpoint(
        function,
        *args,
        use_reentrant=False,
        context_fn=lambda: (contextlib.nullcontext(), preserve_running_statistics(block)),
    )


@contextlib.contextmanager
def preserve_running_statistics(block: nn.Module) -> Iterator[None]:
    """Replace running statistics by copies, so that recomputation does not update them a second time."""
    statistics: list[tuple[nn.Module, str, Tensor]] = []
    for module in block.modules():
        if isinstance(module, norms.RUNNING) and module.training:
            statistics += [(module, name, buffer) for name, buffer in buffers(module).items() if buffer is not None]
    for module, name, buffer in statistics:
        set_buffer(module, name, buffer.clone())
    try:
        yield
    finally:
        for module, name, buffer in statistics:
            set_buffer(module, name, buffer)
