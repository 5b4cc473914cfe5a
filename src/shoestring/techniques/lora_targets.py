"""Where LoRA adapters are put: the linear layers and the stacked experts of a model that a setting names.

Experts of a mixture are stacked in transformers 5: one parameter (experts, rows, columns) for all of a block, which is
no linear layer.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from shoestring.base.errors import UsageError
from shoestring.recipe.adaptation import Adaptation
from shoestring.techniques.nf4 import is_transposed

PRESETS = ("attention", "mlp", "linear")
_ATTENTION = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "out_proj", "query", "key", "value", "q", "k", "v", "o"),
    *("c_attn", "query_key_value", "qkv_proj", "q_lin", "k_lin", "v_lin", "out_lin", "Wqkv"),
)
"""Names of the attention projections in transformers' models; the second line if they are one layer."""
_MLP = (
    *("gate_proj", "up_proj", "down_proj", "gate_up_proj", "fc1", "fc2", "fc_in", "fc_out", "w1", "w2", "w3", "wi"),
    *("wo", "c_fc", "dense_h_to_4h", "dense_4h_to_h", "wi_0", "wi_1", "lin1", "lin2"),
)
"""Names of the linear layers between attentions."""
_NAMES = {"attention": _ATTENTION, "mlp": _MLP}
_READ_WEIGHT = re.compile(r"self\.(\w+)\.weight\b(?!\.(?:dtype|device|shape|size|ndim))")
_MOST_NAMES = 8
"""Of a model in a hint."""
_STACKED_NAMES = {"gate_up_proj": ({"gate_proj", "up_proj"}, {"w1", "w3"}), "down_proj": ({"w2"},)}
"""What the parts of a stack of experts were called as linear layers, in transformers 4 and in the files of weights."""

EARLIER = "peft"
"""The value of `lora_experts` with which names go to peft as they are, as in runs stored before the option existed."""


@dataclass(frozen=True, kw_only=True)
class Targets:
    """The layers and stacks of experts that receive adapters, by their full names."""

    layers: tuple[str, ...]
    endings: tuple[str, ...]
    """The endings of the layers' names, which peft compares."""
    experts: tuple[str, ...] = ()
    """The names of parameters."""
    excluded: tuple[str, ...] = ()
    """Modules with one of these endings that receive none."""


def find(base: nn.Module, adaptation: Adaptation) -> Targets:
    """Return where a model's adapters are put.

    Raises UsageError for names that the model does not have, and for layers on which adapters would have no effect.
    """
    setting = adaptation.lora_targets
    if adaptation.lora_experts == EARLIER:
        return _earlier(base, setting)
    targets, problems = _find(base, adaptation)
    if problems or not (targets.layers or targets.experts):
        raise cannot_be_used(base, adaptation, problems)
    return targets


def stacked_experts(base: nn.Module) -> list[str]:
    """Return the names of the parameters that are stacks of experts."""
    return [
        f"{name}.{parameter_name}"
        for name, module in base.named_modules()
        if "Experts" in type(module).__name__ or _ending(name) == "experts"
        for parameter_name, parameter in module.named_parameters(recurse=False)
        if parameter.dim() == 3 and parameter.is_floating_point()
    ]


def _find(base: nn.Module, adaptation: Adaptation) -> tuple[Targets, list[str]]:
    """Return the targets of a setting, and its problems."""
    setting = adaptation.lora_targets
    stacks = stacked_experts(base) if adaptation.lora_experts == "yes" else []
    if setting in PRESETS:
        heads = {name for name, module in base.named_modules() if module is _head(base)}
        named = {
            name
            for name, _ in linear_layers(base)
            # peft leaves the head out by its name, and with it the head of a model inside this one.
            if (setting == "linear" or _ending(name) in _NAMES[setting]) and not _matches_any(name, heads)
        }
        experts = [name for name in stacks if setting == "linear" or (setting == "attention") == _is_attention(name)]
        bypassing = named.intersection([*_bypassing(base), *_reading_weights(base)])
        # What bypasses adapters is left out, unless there is nothing else.
        problems = [] if named - bypassing or experts else [_bypass_problem(name) for name in sorted(bypassing)]
        endings = {_ending(name) for name in named - bypassing}
        return _targets(base, named - bypassing, endings, experts), problems
    names = {name.strip() for name in setting.split(",")}
    aliases = {
        part: stacked for stacked, sets in _STACKED_NAMES.items() for parts in sets if parts <= names for part in parts
    }
    experts = [name for name in stacks if _matches_any(name, names | set(aliases.values()))]
    modules = [name for name, _ in base.named_modules() if _matches_any(name, names)]
    problems = [_bypass_problem(name) for name in _bypassing(base) if name in modules]
    problems += [
        f"the model has no module {name!r}"
        for name in sorted(names)
        if not any(_matches_any(full_name, {name, aliases.get(name, name)}) for full_name in (*modules, *experts))
    ]
    endings = {name for name in names if any(_matches_any(module, {name}) for module in modules)}
    return _targets(base, set(modules), endings, experts), problems


def _targets(base: nn.Module, layers: set[str], endings: set[str], experts: Sequence[str]) -> Targets:
    named = [name for name, _ in base.named_modules() if _matches_any(name, endings)]
    return Targets(
        layers=tuple(name for name in named if name in layers),
        endings=tuple(sorted(endings)),
        experts=tuple(experts),
        excluded=tuple(name for name in named if name not in layers),
    )


def linear_layers(base: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the names of all linear layers but the head, and the layers: those of torch, GPT-2's, and packed ones."""
    head = _head(base)
    for name, module in base.named_modules():
        if module is not head and (is_transposed(module) or _is_linear(module)) and ".lora_" not in name:
            yield name, module


def _is_linear(module: nn.Module) -> bool:
    """Return whether a module computes a product alone: not a router, which is one with more results in some models."""
    if not isinstance(module, nn.Linear):
        return False
    # bitsandbytes packs the weight of its layers when they are moved to the device.
    is_packed = not module.weight.is_floating_point() or hasattr(module, "quant_state")
    return type(module).forward is nn.Linear.forward or is_packed


def _head(base: nn.Module) -> Any:
    find_head: Any = getattr(base, "get_output_embeddings", None)
    return None if find_head is None else find_head()


def _earlier(base: nn.Module, setting: str) -> Targets:
    """Return the targets of runs that were stored before experts could be adapted, by endings alone."""
    existing = {_ending(name) for name, _ in base.named_modules()}
    if setting == "linear":
        head = _head(base)
        endings = sorted(
            _ending(name)
            for name, module in base.named_modules()
            if module is not head and hasattr(module, "in_features") and hasattr(module, "out_features")
        )
        endings = list(dict.fromkeys(endings))
    elif setting in PRESETS:
        endings = [name for name in _NAMES[setting] if name in existing]
    else:
        endings = [name.strip() for name in setting.split(",")]
    problems = [f"the model has no module {name!r}" for name in endings if _ending(name) not in existing]
    problems += [_bypass_problem(name) for name in _bypassing(base) if _ending(name) in set(map(_ending, endings))]
    if problems or not endings:
        raise UsageError(
            f"lora_targets={setting} cannot be used",
            problems=problems,
            hint=f"use {', '.join(PRESETS)}, or names such as --set lora_targets=q_proj,v_proj",
        )
    return Targets(layers=(), endings=tuple(endings))


def cannot_be_used(base: nn.Module, adaptation: Adaptation, problems: Sequence[str]) -> UsageError:
    """Return the error of a setting, whose hint has values that can be used with this model."""
    usable, names = [], list[str]()
    for preset in PRESETS:
        targets, preset_problems = _find(base, replace(adaptation, lora_targets=preset))
        if preset != adaptation.lora_targets and not preset_problems and (targets.layers or targets.experts):
            usable.append(preset)
            names = [*targets.endings, *map(_ending, targets.experts)]
    hint = "this model has no linear layers for adapters: without lora_r all weights are trained"
    if usable:
        some = ",".join(list(dict.fromkeys(names))[:_MOST_NAMES])
        hint = f"with this model lora_targets can be {', '.join(usable)}, or names of its layers: {some}"
    return UsageError(f"lora_targets={adaptation.lora_targets} cannot be used", problems=problems, hint=hint)


def _bypassing(base: nn.Module) -> Iterator[str]:
    """Yield the names of modules whose weights torch's attention reads directly, so an adapter would never run."""
    for parent_name, parent in base.named_modules():
        if isinstance(parent, nn.MultiheadAttention):
            for name, _ in parent.named_children():
                yield f"{parent_name}.{name}".removeprefix(".")


def _reading_weights(base: nn.Module) -> Iterator[str]:
    """Yield the names of layers whose weight is read by their parent, as by the fused kernels of Mamba's blocks, which
    then compute without an adapter."""
    names_of: dict[type[nn.Module], frozenset[str]] = {}
    for parent_name, parent in base.named_modules():
        parent_class = type(parent)
        if parent_class not in names_of:
            names_of[parent_class] = _names_of_read_weights(parent_class)
        for name, _ in parent.named_children():
            if name in names_of[parent_class]:
                yield f"{parent_name}.{name}".removeprefix(".")


def _names_of_read_weights(module_class: type[nn.Module]) -> frozenset[str]:
    """Return the names of the layers of which the code of a class reads the weight, and not only its type or size."""
    with suppress(OSError, TypeError):  # a class without a file
        return frozenset(_READ_WEIGHT.findall(inspect.getsource(module_class)))
    return frozenset()


def _bypass_problem(name: str) -> str:
    return f"{name} is inside torch's MultiheadAttention or a fused kernel, which bypasses adapters"


def _is_attention(name: str) -> bool:
    return "attention" in name or "attn" in name


def _matches_any(name: str, endings: Collection[str]) -> bool:
    """Return whether peft would find one of the endings in the full name."""
    return any(name == ending or name.endswith(f".{ending}") for ending in endings)


def _ending(name: str) -> str:
    return name.rpartition(".")[2]
