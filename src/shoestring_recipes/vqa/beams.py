"""The memory-relevant steps of beam search: beginning, growing cache, last token; for planning.

The steps are those of transformers' `generate` (5.23, `generation/utils.py: _beam_search`) as `Student.generate` calls
it: a `DynamicCache` whose keys and values are concatenated with those of each token and then reordered by beam, and an
fp32 copy of the logits with its log-softmax and the sums of it over the tokens of each beam.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from shoestring.integrations.huggingface.cache import cache_tensors, grow_cache
from shoestring.recipe.generation import Step
from shoestring_recipes.vqa.student import Batch, Student

STRIDE = 32
"""Tokens between two simulated growths of the cache."""


def simulate_beam_search(
    model: Student, batch: Batch, beginning: int, *, beams: int, max_length: int
) -> Iterator[Step]:
    """Yield the cache after each simulated step; texts begin with `beginning` tokens and have `max_length`."""
    context = model.encode(batch.images, batch.questions, batch.mask).repeat_interleave(beams, dim=0)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    # The decoder's start token is before the beginning; the last token is never an input.
    first, last = 1 + beginning, beginning + max(1, max_length - beginning)
    _choose_tokens(_score(model, context, cache, first), beams)
    _reorder(cache)
    yield Step(_tensors(cache))
    lengths = sorted({*range(first + 1, last, STRIDE), last - 1}) if last > first else []
    middle = lengths[len(lengths) // 2] if lengths else 0
    for length in lengths:
        grow_cache(cache.self_attention_cache, length)
        if length in (middle, last - 1):
            _choose_tokens(_score(model, context, cache, 1), beams)
        _reorder(cache)
        # A token takes as long as the one in the middle, on average: its attention and its copies grow with the text.
        yield Step(_tensors(cache), times=last - first if length == middle else 0)


def _score(model: Student, context: Tensor, cache: EncoderDecoderCache, length: int) -> Tensor:
    """Return the logits (n * beams, 1, vocabulary) after the next `length` tokens of each beam."""
    logits: Tensor = model.writer(
        encoder_outputs=BaseModelOutput(last_hidden_state=context),
        decoder_input_ids=torch.zeros(len(context), length, dtype=torch.int64, device=context.device),
        past_key_values=cache,
        use_cache=True,
    ).logits
    return logits[:, -1:]


def _choose_tokens(logits: Tensor, beams: int) -> Tensor:
    """Return the best continuations of each text's beams."""
    copy = logits[:, -1].to(copy=True, dtype=torch.float32)
    log_probabilities = copy.log_softmax(dim=-1)
    sums = log_probabilities.view(-1, beams, log_probabilities.shape[-1]) + log_probabilities.new_zeros(1, beams, 1)
    return torch.topk(sums.view(len(sums), -1), k=2 * beams).indices


def _reorder(cache: EncoderDecoderCache) -> None:
    """Copy the keys and values of the chosen beams, layer by layer."""
    tensors = _tensors(cache)
    order: Any = torch.arange(len(tensors[0]), device=tensors[0].device)
    cache.reorder_cache(order)


def _tensors(cache: EncoderDecoderCache) -> list[Tensor]:
    return cache_tensors(cache.self_attention_cache) + cache_tensors(cache.cross_attention_cache)
