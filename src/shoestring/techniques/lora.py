"""LoRA adapters by peft: low-rank matrices added to frozen weights."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from shoestring.base.errors import UsageError
from shoestring.base.packages import requirements
from shoestring.recipe.options import Adaptation

EXTRA = "huggingface"

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "out_proj", "query", "key", "value", "q", "k", "v", "o")
_FUSED_ATTENTION = ("c_attn", "query_key_value", "qkv_proj", "q_lin", "k_lin", "v_lin", "out_lin", "Wqkv")
"""Names of the attention projections in transformers' models; the second line if they are one layer."""
_MLP = (
    *(
        "gate_proj",
        "up_proj",
        "down_proj",
        "gate_up_proj",
        "fc1",
        "fc2",
        "fc_in",
        "fc_out",
        "w1",
        "w2",
        "w3",
        "wi",
        "wo",
    ),
    *("c_fc", "dense_h_to_4h", "dense_4h_to_h", "wi_0", "wi_1", "lin1", "lin2"),
)
"""Names of the linear layers between attentions."""
PRESETS = ("attention", "mlp", "linear")


def with_adapters(base: nn.Module, adaptation: Adaptation) -> nn.Module:
    """Return peft's model around `base`, in which only the adapters are trained, in the type `lora_dtype`.

    Raises UsageError for targets that the model does not have or on which adapters would have no effect, and if peft is
    not installed.
    """
    requirements.require(EXTRA, "peft")
    targets = _find_targets(base, adaptation.lora_targets)  # before importing peft, which takes seconds
    from peft import LoraConfig, get_peft_model

    assert adaptation.lora_r is not None
    adapters = LoraConfig(
        r=adaptation.lora_r,
        lora_alpha=adaptation.lora_alpha or 2 * adaptation.lora_r,
        target_modules=targets,
        lora_dropout=adaptation.lora_dropout,
        use_rslora=adaptation.lora_rslora,
        use_dora=adaptation.lora_dora,
    )
    with warnings.catch_warnings():
        # peft uses a name that newer versions of transformers deprecate.
        warnings.simplefilter("ignore", FutureWarning)
        if not _has_tied_weights(base):
            # peft 0.19 warns about every model whose class can tie weights.
            warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True`", UserWarning)
        untyped_base: Any = base
        adapted: nn.Module = get_peft_model(untyped_base, adapters)
    if adaptation.lora_dtype == "bf16":
        # peft itself creates them in fp32, or in the type of the weights, which 4-bit weights do not have.
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(torch.bfloat16)
    return adapted


def _has_tied_weights(model: nn.Module) -> bool:
    return len(list(model.parameters())) < len(list(model.named_parameters(remove_duplicate=False)))


def _find_targets(base: nn.Module, setting: str) -> list[str]:
    endings = {name.rpartition(".")[2] for name, _ in base.named_modules()}
    if setting == "attention":
        targets = [name for name in (*_ATTENTION, *_FUSED_ATTENTION) if name in endings]
    elif setting == "mlp":
        targets = [name for name in _MLP if name in endings]
    elif setting == "linear":
        targets = _linear_layers(base)
    else:
        targets = [name.strip() for name in setting.split(",")]
    problems = [f"the model has no module {name!r}" for name in targets if name.rpartition(".")[2] not in endings]
    # torch's attention reads the weight of its output projection directly, so an adapter's forward would never run.
    problems += [
        f"{name} is inside torch's MultiheadAttention, which bypasses adapters"
        for name, module in base.named_modules()
        if isinstance(base.get_submodule(name.rpartition(".")[0]), nn.MultiheadAttention)
        and name.rpartition(".")[2] in {target.rpartition(".")[2] for target in targets}
        and module is not base
    ]
    if problems or not targets:
        raise UsageError(
            f"lora_targets={setting} cannot be used",
            problems=problems,
            hint=f"use {', '.join(PRESETS)}, or names such as --set lora_targets=q_proj,v_proj",
        )
    return targets


def _linear_layers(base: nn.Module) -> list[str]:
    """Return the endings of the names of all linear layers but the head, as peft's `all-linear` does."""
    find_head: Any = getattr(base, "get_output_embeddings", lambda: None)
    head = find_head()
    named = {
        name.rpartition(".")[2]: module
        for name, module in base.named_modules()
        if module is not head and hasattr(module, "in_features") and hasattr(module, "out_features")
    }
    return sorted(named)
