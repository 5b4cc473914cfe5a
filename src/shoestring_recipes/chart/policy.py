"""The policy: Qwen2.5-VL with LoRA adapters, and the log-probabilities of completions under it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import AutoModelForImageTextToText, DynamicCache, Qwen2_5_VLConfig

from shoestring.techniques import nf4
from shoestring_recipes.chart.vision import ImageLayout, attend_by_segment

ADAPTED_LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""Names of the layers with an adapter; the vision tower's dense layers have the same names as the language model's."""
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}

MERGE_SIZE = 2
"""Patches per side of the square that becomes one token."""


class Batch(NamedTuple):
    """Completions after their prompts; `length` is the total length of prompt and completion."""

    tokens: Tensor
    """(n, length) int64, prompts padded on the left and completions on the right."""
    mask: Tensor
    """(n, length) int64: 0 for padding."""
    positions: Tensor
    """(n, 3, length) int64: temporal, row and column positions."""
    patches: Tensor
    """(n, patches, values per patch) float32."""
    completions: Tensor
    """(n, completion_len) int64: 1 for the completion's tokens, 0 for padding."""
    advantages: Tensor
    """(n,) float32."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The configurations of the two models, and the grid of patches (rows, columns) that every image is resized to."""

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
        """RGB values of a patch of 14 x 14 pixels, twice: a still image is encoded as a video of two frames."""
        return 3 * 2 * 14 * 14

    @property
    def tokens(self) -> int:
        """Number of tokens of an image in the prompt."""
        return self.patches // MERGE_SIZE**2

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


def _rotary_positions(sections: list[int]) -> dict[str, Any]:
    """Return these fields as in the published configuration, a form that every version of transformers reads."""
    return {"rope_theta": 1e6, "rope_scaling": {"rope_type": "default", "mrope_section": sections}}


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
            **_rotary_positions([16, 24, 24]),
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
            # Logits are products with the embeddings. With the usual standard deviation and a width of 64 they are
            # too small to prefer any token, even after training.
            "initializer_range": 0.1,
            "bos_token_id": 0,
            "eos_token_id": 1,
            **_rotary_positions([2, 3, 3]),
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


def lora_config(rank: int) -> LoraConfig:
    """Return the configuration of adapters on every layer in `ADAPTED_LAYERS`."""
    return LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.05, target_modules=ADAPTED_LAYERS)


class Policy(nn.Module):
    """Maps a `Batch` to the log-probabilities of the completions' tokens, (n, completion_len) float32."""

    def __init__(self, shape: Shape, *, rank: int, weights: str, four_bits: bool = False, double: bool = False) -> None:
        """Build the policy with random weights.

        `weights` is the dtype of the frozen weights, a name in `DTYPES`; `four_bits` packs those of linear layers, to
        plan their memory, with scales in 8 bits if `double` is true.
        """
        super().__init__()
        config = shape.config()
        self.image_token = shape.image_token
        vision: Any = config.vision_config
        merge = vision.spatial_merge_size
        self.images = ImageLayout(shape.grid, merge=merge, window=vision.window_size // vision.patch_size // merge)
        from_config: Any = AutoModelForImageTextToText.from_config
        base = from_config(config, dtype=DTYPES[weights])
        attend_by_segment(base.model.visual)
        if four_bits:
            # transformers leaves what it does not pack in the dtype of the weights.
            nf4.quantize(base, nf4.placeholder_layer, compute=DTYPES[weights], double=double, casts_others=False)
        with warnings.catch_warnings():
            # peft calls a deprecated checkpointing API that transformers 6 removes.
            warnings.simplefilter("ignore", FutureWarning)
            self.adapted = get_peft_model(base, lora_config(rank))

    def forward(self, batch: Batch) -> Tensor:
        length = batch.completions.shape[1]
        logits: Tensor = self.adapted(
            inputs_embeds=self._embed(batch.tokens, batch.patches),
            attention_mask=batch.mask,
            position_ids=batch.positions.transpose(0, 1),
            logits_to_keep=length + 1,
        ).logits
        # A token's logits are those of the position before it. In fp32: log-probabilities of 151,936 tokens are close.
        return log_probabilities(logits.float()[:, :-1], batch.tokens[:, -length:])

    def scores(self, batch: Batch, span: slice, cache: DynamicCache) -> Tensor:
        """Return the logits (n, 1, vocabulary) of the token after `span`, whose positions follow those in the cache."""
        tokens = batch.tokens[:, span]
        logits: Tensor = self.adapted.get_base_model()(
            inputs_embeds=self._embed(tokens, None if span.start else batch.patches),
            attention_mask=batch.mask[:, : span.stop],
            position_ids=batch.positions[:, :, span].transpose(0, 1),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
        return logits

    def _embed(self, tokens: Tensor, patches: Tensor | None) -> Tensor:
        """Return embeddings (n, positions, width): of the tokens, and of the patches at the image tokens."""
        model: Any = self.adapted.get_base_model()
        embeddings: Tensor = model.get_input_embeddings()(tokens)
        if patches is None:
            return embeddings
        images = self.images.encode(model.model.visual, patches)
        return embeddings.masked_scatter((tokens == self.image_token)[:, :, None], images.to(embeddings.dtype))


def log_probabilities(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probabilities (n, length) of `tokens` (n, length) under `logits` (n, length, vocabulary).

    log_softmax is not used, because its result would be as large as the logits. The samples are processed one after
    the other, because logsumexp copies its input.
    """
    chosen = logits.gather(-1, tokens[..., None]).squeeze(-1)
    return chosen - torch.stack([sample.logsumexp(dim=-1) for sample in logits])
