"""From text and image to what the model reads, and back: Qwen2.5-VL's own processor, made of its parts.

As a whole it wants a processor of videos, which wants torchvision.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoestring.recipes.chart.data import INSTRUCTION, Charts

SPECIAL = (
    "<|endoftext|>",
    "<|im_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|im_start|>",
)
"""In the order of their numbers in the tiny model (`policy.SIZES`)."""

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Qwen2.5-VL's form of a conversation."""

PATCH = 14 * 2
"""Pixels on the side of what becomes one token."""


def processor(tokenizer: Any, image_tokens: int) -> Any:
    """Qwen2.5-VL's processor for images of `image_tokens` tokens at most."""
    from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    pixels = image_tokens * PATCH**2
    images = Qwen2VLImageProcessorPil(size={"shortest_edge": pixels, "longest_edge": pixels})

    class Stills(Qwen2_5_VLProcessor):
        """Without videos."""

        @classmethod
        def get_attributes(cls) -> list[str]:
            return ["image_processor", "tokenizer"]

    make: Any = Stills
    return make(image_processor=images, tokenizer=tokenizer, chat_template=tokenizer.chat_template or TEMPLATE)


def trained_tokenizer(charts: Charts, vocabulary: int) -> Any:
    """A byte-level BPE of `vocabulary` tokens, learnt from the questions and what is known of the charts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    texts = [INSTRUCTION, *(f"{row.query}\n{row.known}" for row in charts.rows)]
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    learning = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, learning)
    make: Any = PreTrainedTokenizerFast
    return make(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL[2:]),
        chat_template=TEMPLATE,
        padding_side="left",
    )


def pretrained_tokenizer(where: Path | str) -> Any:
    """The tokenizer that lies with the weights."""
    from transformers import AutoTokenizer

    make: Any = AutoTokenizer
    return make.from_pretrained(where, local_files_only=Path(where).exists(), padding_side="left")
