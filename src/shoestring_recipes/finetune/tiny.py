"""A small model with random weights and its tokenizer, for runs without a model: to try the recipe, and for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shoestring.integrations.huggingface.vocabularies import train_byte_level

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 1024

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML."""


def configuration() -> Any:
    """Return the configuration of a Llama with 1.2 million parameters."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
        dtype="float32",
    )


def train_tokenizer(texts: Iterable[str]) -> Any:
    """Train a byte-level BPE tokenizer on the texts, which always gives the same one."""
    return train_byte_level(
        texts,
        VOCABULARY,
        SPECIAL_TOKENS,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        bos_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        model_max_length=2048,
    )
