"""The policy: Qwen2.5-VL with LoRA adapters, and the log-probabilities of completions under it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import AutoModelForImageTextToText, DynamicCache, Qwen2_5_VLConfig

from shoestring.recipes.chart.vision import Images, attend_by_segment
from shoestring.techniques import nf4

ADAPTED = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""Names of the layers with an adapter; the vision tower's dense layers are called like the language model's."""
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


MERGED = 2
"""Patches on the side of what becomes one token."""


class Batch(NamedTuple):
    """Completions after their prompts; `length` is of prompt and completion together."""

    tokens: Tensor
    """(n, length) int64, prompts padded on the left and completions on the right."""
    mask: Tensor
    """(n, length) int64: 0 for padding."""
    positions: Tensor
    """(n, 3, length) int64: in time, in rows and in columns."""
    patches: Tensor
    """(n, patches, values of a patch) float32."""
    completions: Tensor
    """(n, completion_len) int64: 1 for the completion's tokens, 0 for padding."""
    advantages: Tensor
    """(n,) float32."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The two configurations, and the grid of patches that every image is brought to."""

    text: dict[str, Any]
    vision: dict[str, Any]
    grid: tuple[int, int]
    image_token: int
    other_tokens: dict[str, int]

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def patch_values(self) -> int:
        """Colours of a patch of 14 x 14 pixels, twice: a still image is a film of two frames."""
        return 3 * 2 * 14 * 14

    @property
    def tokens(self) -> int:
        """Of an image in the prompt."""
        return self.patches // MERGED**2

    @property
    def pixels(self) -> tuple[int, int]:
        """Width and height of an image."""
        return self.grid[1] * 14, self.grid[0] * 14

    def config(self) -> Qwen2_5_VLConfig:
        values: dict[str, Any] = {
            "text_config": {**self.text, "tie_word_embeddings": True, "use_cache": False},
            "vision_config": self.vision,
            "tie_word_embeddings": True,
            "image_token_id": self.image_token,
            **self.other_tokens,
        }
        return Qwen2_5_VLConfig(**values)


SIZES = {
    # Qwen/Qwen2.5-VL-3B-Instruct, with images of 320 * 28 * 28 pixels.
    "full": Shape(
        text={
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 128000,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
        },
        vision={"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 2048},
        grid=(32, 40),
        image_token=151655,
        other_tokens={},
    ),
    "tiny": Shape(
        text={
            "vocab_size": 512,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-6,
            # Scores are products with the embeddings: ones of the usual size are too small in 64 places to prefer a
            # token much, whatever is learnt.
            "initializer_range": 0.1,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]},
        },
        vision={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 64,
            "fullatt_block_indexes": [1],
        },
        grid=(8, 16),
        image_token=2,
        other_tokens={"video_token_id": 3, "vision_start_token_id": 4, "vision_end_token_id": 5},
    ),
}


def adapters(rank: int) -> LoraConfig:
    """On every layer with a name in `ADAPTED`."""
    return LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.05, target_modules=ADAPTED)


class Policy(nn.Module):
    """`Batch` in, log-probabilities of the completions' tokens (n, completion_len) float32 out."""

    def __init__(self, shape: Shape, *, rank: int, weights: str, four_bits: bool = False) -> None:
        """`weights`: type of the frozen ones, a name in `TYPES`; `four_bits` packs those of linear layers, to show what
        that takes.
        """
        super().__init__()
        config = shape.config()
        self.image_token = shape.image_token
        vision: Any = config.vision_config
        merge = vision.spatial_merge_size
        self.images = Images(shape.grid, merge=merge, window=vision.window_size // vision.patch_size // merge)
        make: Any = AutoModelForImageTextToText.from_config
        base = make(config, dtype=TYPES[weights])
        attend_by_segment(base.model.visual)
        if four_bits:
            nf4.quantize(base, nf4.pretended, compute=TYPES[weights], double=False)
            for parameter in base.parameters():
                # transformers leaves what it does not pack in the weights' type.
                if parameter.is_floating_point():
                    parameter.data = parameter.data.to(TYPES[weights])
        with warnings.catch_warnings():
            # peft asks transformers about checkpointing by a name that will be gone in version 6.
            warnings.simplefilter("ignore", FutureWarning)
            self.adapted = get_peft_model(base, adapters(rank))

    def forward(self, batch: Batch) -> Tensor:
        length = batch.completions.shape[1]
        logits: Tensor = self.adapted(
            inputs_embeds=self._embedded(batch.tokens, batch.patches),
            attention_mask=batch.mask,
            position_ids=batch.positions.transpose(0, 1),
            logits_to_keep=length + 1,
        ).logits
        # A token is foretold by the place before it. fp32: log-probabilities of 151,936 tokens lie close together.
        return log_probabilities(logits.float()[:, :-1], batch.tokens[:, -length:])

    def scores(self, batch: Batch, places: slice, cache: DynamicCache) -> Tensor:
        """Logits (n, 1, vocabulary) of the token after `places`; keys and values before them are in the cache."""
        tokens = batch.tokens[:, places]
        logits: Tensor = self.adapted.get_base_model()(
            inputs_embeds=self._embedded(tokens, None if places.start else batch.patches),
            attention_mask=batch.mask[:, : places.stop],
            position_ids=batch.positions[:, :, places].transpose(0, 1),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
        return logits

    def _embedded(self, tokens: Tensor, patches: Tensor | None) -> Tensor:
        """(n, places, width): words, and where there are patches, images in their places."""
        model: Any = self.adapted.get_base_model()
        words: Tensor = model.get_input_embeddings()(tokens)
        if patches is None:
            return words
        images = self.images.encode(model.model.visual, patches)
        return words.masked_scatter((tokens == self.image_token)[:, :, None], images.to(words.dtype))


def log_probabilities(logits: Tensor, tokens: Tensor) -> Tensor:
    """(n, length) of the `tokens` (n, length) under `logits` (n, length, vocabulary).

    Not by log_softmax, whose result would be as large as the logits; and one sample after the other, for logsumexp
    makes a copy of what it is given.
    """
    chosen = logits.gather(-1, tokens[..., None]).squeeze(-1)
    return chosen - torch.stack([sample.logsumexp(dim=-1) for sample in logits])
