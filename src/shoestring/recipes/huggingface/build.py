"""Building the model to train from a configuration and options."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from shoestring.recipes.huggingface import Options, attention, chunks, configuration


def build_model(source: str, options: Options) -> nn.Module:
    """Build the model for training, in fp32. Raises UsageError where `loss_chunk` is set but not supported."""
    config = configuration.read(source)
    attention.register()
    model_class = configuration.find_model_class(config)
    if options.loss_chunk:
        chunks.require_plain_head(model_class, config)
    from_config: Any = getattr(model_class, "_from_config", None) or model_class.from_config
    implementation = _choose_attention(model_class, config, options)
    model: Any = from_config(config, dtype=torch.float32, attn_implementation=implementation)
    model.config.use_cache = False
    training_model: nn.Module = model.train()
    return training_model


def _choose_attention(model_class: Any, config: Any, options: Options) -> str:
    """Return transformers' name of the attention; models that only support eager attention (T5, GPT-Neo) get that."""
    if options.attention == "eager" or not getattr(model_class, "_supports_sdpa", True):
        return "eager"
    text = config.get_text_config()
    heads = getattr(text, "num_attention_heads", None)
    return "sdpa" if getattr(text, "num_key_value_heads", heads) in (heads, None) else attention.NAME
