"""The memory-relevant steps of generating completions: prompt, growing KV cache, last token; for planning.

The steps are those of transformers' `generate` (5.23, `generation/utils.py: _sample`) as TRL's GRPO calls it (1.10,
`trainer/grpo_trainer.py`): sampling from the whole vocabulary at temperature 1, unmerged adapters, a `DynamicCache`
that concatenates keys and values layer by layer, logits of the last position only. `writing.py`, which generates the
completions in training, needs less memory: it processes a prompt once for all of its completions and allocates each
layer's cache once at its full length.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import DynamicCache

from shoestring.recipes.chart.policy import Batch, Policy
from shoestring.recipes.huggingface.cache import cache_tensors, grow_cache

STRIDE = 64
"""Tokens between two simulated growths of the cache. Growing blocks leave gaps that none of them fits into again; in
the simulated allocator a stride of 64 leaves as many gaps as a stride of 1, to 10% (1 to 32 sequences, this model)."""


def simulate_generation(policy: Policy, batch: Batch) -> Iterator[list[Tensor]]:
    """Yield the cache after each simulated step: for each layer keys and values (n, key heads, positions, head width).

    Between the prompt and the last token only the cache is allocated; every other tensor of these steps is smaller.
    """
    total_length, completion_length = batch.tokens.shape[1], batch.completions.shape[1]
    prompt = total_length - completion_length
    cache = DynamicCache()
    sample_token(policy.scores(batch, slice(0, prompt), cache))
    yield cache_tensors(cache)
    # The last token is generated, but it is never an input of the model.
    last = total_length - 2
    for length in range(prompt + 1, last, STRIDE):
        grow_cache(cache, length)
        yield cache_tensors(cache)
    if completion_length > 1:
        grow_cache(cache, last)
        yield cache_tensors(cache)
        sample_token(policy.scores(batch, slice(last, last + 1), cache))
        yield cache_tensors(cache)


def sample_token(logits: Tensor) -> Tensor:
    """Sample a token for each of n texts from logits (n, 1, vocabulary): (n, 1) int64, via an fp32 copy and softmax."""
    scores = logits[:, -1].to(copy=True, dtype=torch.float32)
    return torch.multinomial(scores.softmax(dim=-1), num_samples=1)
