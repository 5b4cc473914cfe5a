"""Small random causal language models of several families."""

from typing import Any

import torch
import transformers

VOCABULARY = 96
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 6},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "gemma2": {"head_dim": 8, "sliding_window": 6},
    "gemma3_text": {"head_dim": 8, "sliding_window": 6},
    "phi3": {"eos_token_id": 1, "bos_token_id": 1},
    "gpt_neox": {},
    "olmo2": {},
}


def build(family: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """Return a model as the recipe builds it."""
    from shoestring_recipes.finetune.building import build_random

    torch.manual_seed(seed)
    config = transformers.CONFIG_MAPPING[family](**{**_SIZES, **FAMILIES[family]})
    return build_random(config).to(dtype)
