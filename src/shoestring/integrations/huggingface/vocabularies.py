"""Tokenizers for models with random weights, whose vocabulary is learned from the texts of a recipe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def train_byte_level(texts: Iterable[str], vocabulary: int, special_tokens: Sequence[str], **options: Any) -> Any:
    """Train a byte-level BPE tokenizer of `vocabulary` tokens, of which the first are the special ones.

    The same texts always give the same tokenizer. `options` are those of transformers' `PreTrainedTokenizerFast`.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    create: Any = PreTrainedTokenizerFast
    return create(tokenizer_object=tokenizer, **options)
