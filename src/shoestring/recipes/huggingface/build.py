"""From a configuration and options to the model that is trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from shoestring.recipes.huggingface import Options, attention, chunks, configuration


def model(source: str, options: Options) -> nn.Module:
    """The model for training, in fp32. Raises UsageError for a loss in chunks that it cannot have."""
    settings = configuration.read(source)
    attention.register()
    kind = configuration.model_class(settings)
    if options.loss_chunk:
        chunks.require_plain_head(kind, settings)
    make = getattr(kind, "_from_config", None) or kind.from_config
    made: Any = make(settings, dtype=torch.float32, attn_implementation=_attention(kind, settings, options))
    made.config.use_cache = False
    trained: nn.Module = made.train()
    return trained


def _attention(kind: Any, settings: Any, options: Options) -> str:
    """Its name in transformers, which takes eager attention for the models that have no other, T5 and GPT-Neo among
    them."""
    if options.attention == "eager" or not getattr(kind, "_supports_sdpa", True):
        return "eager"
    text = settings.get_text_config()
    heads = getattr(text, "num_attention_heads", None)
    return "sdpa" if getattr(text, "num_key_value_heads", heads) in (heads, None) else attention.NAME
