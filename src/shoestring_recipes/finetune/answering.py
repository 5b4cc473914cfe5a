"""The steps of answering held-out prompts as `generation.generate` does, for planning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache

from shoestring.integrations.huggingface.cache import cache_tensors, grow_cache
from shoestring.recipe.generation import Step
from shoestring_recipes.finetune.generation import base_model


def simulate_answers(model: nn.Module, prompt_lengths: Sequence[int], *, max_tokens: int, size: int) -> Iterator[Step]:
    """Yield the steps of answering prompts of these lengths with `max_tokens` each, `size` of them at a time."""
    if not prompt_lengths:
        return
    base = base_model(model)
    device = base.get_input_embeddings().weight.device
    count, groups = min(size, len(prompt_lengths)), -(-len(prompt_lengths) // size)
    cache = DynamicCache()
    _choose_tokens(base, torch.zeros(count, max(prompt_lengths), dtype=torch.long, device=device), cache)
    yield Step(cache_tensors(cache), groups)
    if max_tokens > 1:
        grow_cache(cache, max(prompt_lengths) + max_tokens // 2)
        yield Step(cache_tensors(cache), 0)
        _choose_tokens(base, torch.zeros(count, 1, dtype=torch.long, device=device), cache)
        yield Step(cache_tensors(cache), groups * (max_tokens - 1))


def _choose_tokens(base: Any, tokens: torch.Tensor, cache: Any) -> torch.Tensor:
    chosen: torch.Tensor = base(input_ids=tokens, past_key_values=cache, use_cache=True).logits[:, -1].argmax(dim=-1)
    return chosen
