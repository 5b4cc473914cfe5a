"""Building the model to train from a configuration and options."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn

from shoestring.integrations.huggingface import (
    Options,
    attention,
    chunks,
    configuration,
    diffusion,
    heads,
    packed_files,
    preference,
)
from shoestring.integrations.huggingface.library_errors import explained, hint_at_file


def build_model(source: str, options: Options) -> nn.Module:
    """Build the model for training, in fp32, which says what files of its configuration have in 4 bits.

    Raises UsageError where `loss_chunk` or `method` is not supported.
    """
    config = configuration.read(source)
    if isinstance(config, diffusion.Configuration):
        with explained(f"{config.class_name} cannot be built", hint_at_file(source)):
            return diffusion.build_model(config)
    attention.register()
    model_class = heads.find_model_class(config, options.head)
    if options.method == "dpo":
        chunks.require_causal(model_class, "method=dpo")
    if options.loss_chunk:
        chunks.require_plain_head(model_class, config)
    fix_random_parts(config)
    implementation = choose_attention(model_class, config, options)
    with explained(f"{model_class.__name__} cannot be built", hint_at_file(source)):
        model: Any = model_class._from_config(config, dtype=torch.float32, attn_implementation=implementation)
    model.config.use_cache = False
    if packed_files.is_nf4(quantization := packed_files.quantization_of(config)):
        packed_files.mark(model, quantization)
    training_model: nn.Module = model.train()
    return preference.WithReference(training_model) if options.second_model else training_model


def choose_attention(model_class: Any, config: Any, options: Options) -> str | dict[str, str]:
    """Return transformers' name of the attention, or one for each part of a model of several parts.

    Models that only support eager attention (T5, Gemma 2, gpt-oss) get that, as transformers would choose.
    """
    if options.attention == "eager" or not getattr(model_class, "_supports_sdpa", True):
        return "eager"
    refusing = [name for name in getattr(config, "sub_configs", {}) if not _supports_sdpa(getattr(config, name, None))]
    text = config.get_text_config()
    head_count = getattr(text, "num_attention_heads", None)
    shares_heads = getattr(text, "num_key_value_heads", head_count) not in (head_count, None)
    fused = attention.NAME if shares_heads and options.attention == "sdpa" else "sdpa"
    parts = {**dict.fromkeys(config.sub_configs, fused), **dict.fromkeys(refusing, "eager")}
    return {"": fused, **parts} if refusing else fused


def _supports_sdpa(part: Any) -> bool:
    """Return whether the model of a part's configuration has SDPA; a part whose model is not known may have it."""
    # Backbones, such as the ResNet of RT-DETR, have a table of their own.
    tables = (transformers.AutoModel._model_mapping, transformers.AutoBackbone._model_mapping)
    model_class = next((table[type(part)] for table in tables if type(part) in table), None)
    classes = model_class if isinstance(model_class, tuple) else (model_class,)
    return all(getattr(part_class, "_supports_sdpa", True) for part_class in classes)


def eager_parts(model_class: Any, config: Any, options: Options) -> list[str]:
    """Return what has eager attention without being asked for it: the model, or some of its parts."""
    chosen = choose_attention(model_class, config, options)
    if options.attention == "eager" or isinstance(chosen, str):
        return [model_class.__name__] if chosen == "eager" != options.attention else []
    return [f"{part} of {model_class.__name__}" for part, name in chosen.items() if name == "eager"]


_RANDOM = {"layerdrop": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "apply_spec_augment": False}
"""Fields of a configuration by which parts of an update depend on random numbers, with their values without that."""


def fix_random_parts(config: Any) -> list[str]:
    """Set these fields, and return the names of those that were set otherwise."""
    names = [name for name in _RANDOM if getattr(config, name, False)]
    for name in names:
        setattr(config, name, _RANDOM[name])
    return names
