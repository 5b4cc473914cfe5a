"""Tokenizers and the processor of Qwen2.5-VL: from texts and images to the model's inputs, and back.

The processor is assembled from its parts, because the complete one has a video processor, which needs torchvision.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from shoestring.integrations.huggingface import versions
from shoestring.integrations.huggingface.vocabularies import train_byte_level
from shoestring_recipes.chart.data import Charts
from shoestring_recipes.chart.presentation import LEAST_TOKENS, TOKEN_SIDE
from shoestring_recipes.template_limits import rendered

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|im_start|>",
)
"""Special tokens in the order of their numbers in the tiny model (`policy.SIZES`)."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Qwen2.5-VL's chat template."""


def build_processor(tokenizer: Any, image_tokens: int, *, keeps_aspect: bool = False) -> Any:
    """Build Qwen2.5-VL's processor for images of `image_tokens` tokens, or of any shape with at most as many."""
    from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor

    pixels = image_tokens * TOKEN_SIDE**2
    least = LEAST_TOKENS * TOKEN_SIDE**2 if keeps_aspect else pixels
    # transformers 4.56 has an argument `size` too, but ignores it.
    images = versions.image_processor_class()(min_pixels=least, max_pixels=pixels)

    class Stills(Qwen2_5_VLProcessor):
        """The processor of texts and still images, without videos."""

        attributes = ("image_processor", "tokenizer")  # read by transformers 4, as is the next line
        tokenizer_class = type(tokenizer).__name__

        @classmethod
        def get_attributes(cls) -> list[str]:  # called by transformers 5
            return list(cls.attributes)

    create: Any = Stills
    return create(image_processor=images, tokenizer=tokenizer, chat_template=template_of(tokenizer))


def encode_prompts(processor: Any, conversations: list[list[dict[str, Any]]]) -> Any:
    """Return the inputs of the model for conversations with one image each, padded on the side of the tokenizer."""
    # In two steps: the names of the arguments that `apply_chat_template` passes on differ between versions.
    apply = partial(processor.apply_chat_template, add_generation_prompt=True, tokenize=False)
    texts = [rendered(partial(apply, conversation=messages)) for messages in conversations]
    images = [
        part["image"] for messages in conversations for message in messages for part in message["content"]
        if part["type"] == "image"
    ]  # fmt: skip
    return processor(text=texts, images=images, padding=True, return_tensors="pt")


def template_of(tokenizer: Any) -> str:
    """Return the chat template of a tokenizer, or that of Qwen2.5-VL for one without."""
    return tokenizer.chat_template or CHAT_TEMPLATE


def train_tokenizer(charts: Charts, vocabulary: int) -> Any:
    """Train a byte-level BPE tokenizer of `vocabulary` tokens on the questions and annotations of the charts."""
    texts = [charts.presentation.instruction, *(f"{row.query}\n{row.annotations}" for row in charts.rows)]
    return train_byte_level(
        texts,
        vocabulary,
        SPECIAL_TOKENS,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL_TOKENS[2:]),
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],  # transformers 4 has token types too by default
    )


def load_tokenizer(folder: Path) -> Any:
    """Load a tokenizer from a folder, without running code from there."""
    from transformers import AutoTokenizer

    auto_tokenizer: Any = AutoTokenizer
    return auto_tokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False, padding_side="left")
