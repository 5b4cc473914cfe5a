"""From a configuration and options to the model that is trained."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from shoestring.errors import QuestionError
from shoestring.recipes.huggingface import Options, attention, chunks, configuration, nf4

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "out_proj", "query", "key", "value", "q", "k", "v", "o")
_ATTENTION_IN_ONE = ("c_attn", "query_key_value", "qkv_proj", "q_lin", "k_lin", "v_lin", "out_lin", "Wqkv")
"""How transformers' models name the projections of attention; the second line where they are one layer."""


def model(source: str, options: Options) -> nn.Module:
    """The model for training. Raises QuestionError for adapters' targets that it has not."""
    settings = configuration.read(source)
    attention.register()
    kind = configuration.model_class(settings)
    if options.loss_chunk:
        chunks.require_plain_head(kind, settings)
    make = getattr(kind, "_from_config", None) or kind.from_config
    dtype = _DTYPES[options.weights]
    made: Any = make(settings, dtype=dtype, attn_implementation=_attention(kind, settings, options))
    made.config.use_cache = False
    made.train()
    if options.quantization == "nf4":
        # bitsandbytes computes in the type of its compute option, for which fp32 base weights have no better one.
        nf4.quantize(made, compute=dtype, double=options.double_quantization)
    return _with_adapters(made, options) if options.lora_r else made


def _attention(kind: Any, settings: Any, options: Options) -> str:
    """Its name in transformers, which takes eager attention for the models that have no other, T5 and GPT-Neo among
    them."""
    if options.attention == "eager" or not getattr(kind, "_supports_sdpa", True):
        return "eager"
    text = settings.get_text_config()
    heads = getattr(text, "num_attention_heads", None)
    return "sdpa" if getattr(text, "num_key_value_heads", heads) in (heads, None) else attention.NAME


def _with_adapters(base: Any, options: Options) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    targets = _targets(base, options.lora_targets)
    adapters = LoraConfig(
        r=options.lora_r or 1, lora_alpha=options.lora_alpha or 2 * (options.lora_r or 1), target_modules=targets
    )
    with warnings.catch_warnings():
        # peft asks by a name that a newer transformers calls deprecated.
        warnings.simplefilter("ignore", FutureWarning)
        adapted: nn.Module = get_peft_model(base, adapters)
    return adapted


def _targets(base: nn.Module, wanted: str) -> list[str]:
    ends = {name.rpartition(".")[2] for name, _ in base.named_modules()}
    if wanted == "attention":
        found = [name for name in (*_ATTENTION, *_ATTENTION_IN_ONE) if name in ends]
    else:
        found = [name.strip() for name in wanted.split(",")]
    problems = [f"the model has no module {name!r}" for name in found if name.rpartition(".")[2] not in ends]
    if problems or not found:
        raise QuestionError(
            f"lora.targets={wanted} cannot be used", problems=problems, hint="for one, --set lora.targets=q_proj,v_proj"
        )
    return found
