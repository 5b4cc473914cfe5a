"""The steps of generating completions as `writing.py` does, for planning: prompt, a token in the middle, last token."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from transformers import DynamicCache

from shoestring.recipe.generation import Step
from shoestring.techniques.whole_weights import whole_weights
from shoestring_recipes.chart.policy import Batch, Policy
from shoestring_recipes.chart.writing import Decoder, sample_tokens


def simulate_generation(policy: Policy, batch: Batch, *, prompts: int, groups: int) -> Iterator[Step]:
    """Yield the steps of generating the completions of the batch, whose rows have `prompts` different prompts.

    The state of a step is the cache: for each layer keys and values (n, key heads, positions, head width). The
    completions of an update are generated in so many `groups`, one after the other, that are like this one.
    """
    with whole_weights(policy):
        yield from _simulate_steps(policy, batch, prompts=prompts, groups=groups)


def _simulate_steps(policy: Policy, batch: Batch, *, prompts: int, groups: int) -> Iterator[Step]:
    total_length, completion_length = batch.tokens.shape[1], batch.completions.shape[1]
    prompt = total_length - completion_length
    cache = DynamicCache()
    unique = Batch(*(tensor[:prompts] for tensor in batch))
    device, rows = batch.tokens.device, torch.arange(len(batch.tokens), device=batch.tokens.device) % prompts
    # TRL does not generate under autocast: the model computes in the type of its weights.
    with torch.autocast(device.type, enabled=False):
        scores = policy.scores(unique, slice(0, prompt), cache)[:, -1][rows]
        # Most prompts of a batch have other lengths than its longest, so there is a mask.
        mask = batch.mask.bool()[:, None, None]
        decoder = Decoder(policy.adapted.get_base_model(), cache, rows, mask, completion_length)
        sample_tokens(scores)
    yield Step(decoder.cache, groups)
    # The last token is generated, but it is never an input of the model.
    last = total_length - 2
    middle = prompt + max(0, last - prompt) // 2
    for position in sorted({middle, last} if completion_length > 1 else ()):
        with torch.autocast(device.type, enabled=False):
            scores = decoder(batch.tokens[:, position], batch.positions[:, 0, position], position)
            sample_tokens(scores)
        # A token takes as long as the one in the middle, on average: its attention grows with the text.
        yield Step(decoder.cache, groups * (completion_length - 1) if position == middle else 0)
