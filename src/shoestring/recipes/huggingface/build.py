"""Building the model to train from a configuration and options."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from shoestring.recipes.huggingface import Options, attention, chunks, configuration, diffusion, heads
from shoestring.recipes.huggingface.library_errors import explained


def build_model(source: str, options: Options) -> nn.Module:
    """Build the model for training, in fp32. Raises UsageError where `loss_chunk` is set but not supported."""
    config = configuration.read(source)
    if isinstance(config, diffusion.Configuration):
        with explained(f"{config.class_name} cannot be built", source):
            return diffusion.build_model(config)
    attention.register()
    model_class = heads.find_model_class(config, options.head)
    if options.loss_chunk:
        chunks.require_plain_head(model_class, config)
    fix_random_parts(config)
    implementation = choose_attention(model_class, config, options)
    with explained(f"{model_class.__name__} cannot be built", source):
        model: Any = model_class._from_config(config, dtype=torch.float32, attn_implementation=implementation)
    model.config.use_cache = False
    training_model: nn.Module = model.train()
    return training_model


def choose_attention(model_class: Any, config: Any, options: Options) -> str:
    """Return transformers' name of the attention; models that only support eager attention (T5, GPT-Neo) get that."""
    if options.attention == "eager" or not getattr(model_class, "_supports_sdpa", True):
        return "eager"
    text = config.get_text_config()
    head_count = getattr(text, "num_attention_heads", None)
    return "sdpa" if getattr(text, "num_key_value_heads", head_count) in (head_count, None) else attention.NAME


_RANDOM = {"layerdrop": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "apply_spec_augment": False}
"""Fields of a configuration by which parts of an update depend on random numbers, and the value of each without that."""


def fix_random_parts(config: Any) -> list[str]:
    """Set these fields, and return the names of those that were set otherwise."""
    names = [name for name in _RANDOM if getattr(config, name, False)]
    for name in names:
        setattr(config, name, _RANDOM[name])
    return names
