"""LoRA through peft: low-rank matrices beside frozen weights."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from shoestring.errors import UsageError
from shoestring.recipe import extras
from shoestring.recipe.options import Adaptation

EXTRA = "huggingface"

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "out_proj", "query", "key", "value", "q", "k", "v", "o")
_ATTENTION_IN_ONE = ("c_attn", "query_key_value", "qkv_proj", "q_lin", "k_lin", "v_lin", "out_lin", "Wqkv")
"""How transformers' models name the projections of attention; the second line where they are one layer."""


def with_adapters(base: nn.Module, wanted: Adaptation) -> nn.Module:
    """peft's model around `base`: only the adapters are trained, in fp32.

    Raises UsageError for targets that it has not or that adapters would have no effect on, and where peft is not
    installed.
    """
    extras.require(EXTRA, "peft")
    targets = _targets(base, wanted.lora_targets)  # before peft, which takes seconds to import
    from peft import LoraConfig, get_peft_model

    assert wanted.lora_r is not None
    adapters = LoraConfig(r=wanted.lora_r, lora_alpha=wanted.lora_alpha or 2 * wanted.lora_r, target_modules=targets)
    with warnings.catch_warnings():
        # peft asks by a name that a newer transformers calls deprecated.
        warnings.simplefilter("ignore", FutureWarning)
        anything: Any = base
        adapted: nn.Module = get_peft_model(anything, adapters)
    return adapted


def _targets(base: nn.Module, wanted: str) -> list[str]:
    ends = {name.rpartition(".")[2] for name, _ in base.named_modules()}
    if wanted == "attention":
        found = [name for name in (*_ATTENTION, *_ATTENTION_IN_ONE) if name in ends]
    else:
        found = [name.strip() for name in wanted.split(",")]
    problems = [f"the model has no module {name!r}" for name in found if name.rpartition(".")[2] not in ends]
    # torch's own attention reads its output's weight past the layer, and an adapter would never be asked.
    problems += [
        f"{name} is inside torch's MultiheadAttention, which passes adapters by"
        for name, module in base.named_modules()
        if isinstance(base.get_submodule(name.rpartition(".")[0]), nn.MultiheadAttention)
        and name.rpartition(".")[2] in {end.rpartition(".")[2] for end in found}
        and module is not base
    ]
    if problems or not found:
        raise UsageError(
            f"lora.targets={wanted} cannot be used", problems=problems, hint="for one, --set lora.targets=q_proj,v_proj"
        )
    return found
