"""Writing completions, as far as it decides how much memory that takes: prompt, growing cache, last token.

The steps are those of transformers' `generate` (5.23, `generation/utils.py: _sample`) as TRL's GRPO calls it (1.10,
`trainer/grpo_trainer.py`): sampling from the whole vocabulary at temperature 1, adapters not merged, a `DynamicCache`
that concatenates keys and values of one layer after the other, logits of the last place alone. `writing.py` stays
below: it reads a prompt once for all of its completions and makes each layer's cache once, as long as it will be.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from shoestring.recipes.chart.policy import Batch, Policy

STRIDE = 64
"""Tokens between two followed growths of the cache. Blocks that grow leave gaps behind which none of them fits again;
in the simulated allocator a stride of 64 leaves as many as one of 1, to 10% (1 to 32 sequences, this model)."""


def decisive_steps(policy: Policy, batch: Batch) -> Iterator[list[Tensor]]:
    """Yields after each step the cache: for each layer keys and values (n, key heads, places so far, head width).

    Of the steps between the prompt and the last token only the cache is followed; all else of them is smaller.
    """
    places, written = batch.tokens.shape[1], batch.completions.shape[1]
    prompt = places - written
    cache = DynamicCache()
    sampled(policy.scores(batch, slice(0, prompt), cache))
    yield tensors(cache)
    # The last token is written and never read.
    last = places - 2
    for place in range(prompt + 1, last, STRIDE):
        grow(cache, place)
        yield tensors(cache)
    if written > 1:
        grow(cache, last)
        yield tensors(cache)
        sampled(policy.scores(batch, slice(last, last + 1), cache))
        yield tensors(cache)


def sampled(logits: Tensor) -> Tensor:
    """One token of each of (n, 1, vocabulary), as (n, 1) int64, by way of fp32 copies and their softmax."""
    scores = logits[:, -1].to(copy=True, dtype=torch.float32)
    return torch.multinomial(scores.softmax(dim=-1), num_samples=1)


def grow(cache: DynamicCache, length: int) -> None:
    """Bring every layer's keys and values to `length` places, in turn, whatever their values."""
    layers: Any = cache.layers
    for layer in layers:
        if layer.keys.shape[2] < length:
            layer.keys = layer.keys.new_zeros(*layer.keys.shape[:2], length, layer.keys.shape[3])
            layer.values = layer.values.new_zeros(*layer.values.shape[:2], length, layer.values.shape[3])


def tensors(cache: DynamicCache) -> list[Tensor]:
    """What is kept from one step to the next."""
    layers: Any = cache.layers
    return [kept for layer in layers for kept in (layer.keys, layer.values)]
