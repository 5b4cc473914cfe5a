"""The student: BLIP's vision transformer and PhoBERT, fused into one vector, which ViT5 reads as its whole input."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers import (
    BlipVisionConfig,
    BlipVisionModel,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.modeling_outputs import BaseModelOutput

IGNORED = -100
"""The label of padding."""

Batch: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]
"""Images (n, 3, pixels, pixels) float32; questions and mask (n, q_len), texts (n, 3, a_len), int64."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What differs from the defaults of the three configurations."""

    vision: dict[str, Any]
    text: dict[str, Any]
    writer: dict[str, Any]

    @property
    def pixels(self) -> int:
        """Side of an image."""
        size = BlipVisionConfig(**self.vision).image_size
        assert isinstance(size, int)
        return size


SIZES = {
    "full": Shape(
        # The defaults are those of Salesforce/blip-vqa-base: 577 tokens of width 768.
        vision={},
        # vinai/phobert-base: two positions are never used, because RoBERTa counts from the padding's id + 1.
        text={"vocab_size": 64001, "max_position_embeddings": 258, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
        # VietAI/vit5-base.
        writer={
            "vocab_size": 36096,
            "d_model": 768,
            "d_kv": 64,
            "d_ff": 3072,
            "num_layers": 12,
            "num_heads": 12,
            "decoder_start_token_id": 0,
        },
    ),
    "tiny": Shape(
        vision={
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 32,
        },
        text={
            "vocab_size": 128,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "max_position_embeddings": 258,
            "type_vocab_size": 1,
        },
        writer={
            "vocab_size": 128,
            "d_model": 16,
            "d_kv": 8,
            "d_ff": 32,
            "num_layers": 2,
            "num_heads": 2,
            "decoder_start_token_id": 0,
        },
    ),
}


class Student(nn.Module):
    """Images and questions in, texts out. PhoBERT's pooler is among its parameters, as published, and unused."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.vision = BlipVisionModel(BlipVisionConfig(**shape.vision))
        self.text = RobertaModel(RobertaConfig(**shape.text))
        self.writer = T5ForConditionalGeneration(T5Config(**shape.writer))
        seen = self.vision.config.hidden_size + self.text.config.hidden_size
        width = self.writer.config.d_model
        self.fusion = nn.Sequential(
            nn.Linear(seen, seen), nn.ReLU(), nn.Dropout(0.2), nn.Linear(seen, width), nn.ReLU(), nn.Dropout(0.1)
        )

    def blocks(self) -> list[nn.Module]:
        """The transformers' layers: the decoder's, the encoder's, PhoBERT's, the vision transformer's."""
        writer, text, vision = self.writer, self.text, self.vision
        return [*writer.decoder.block, *writer.encoder.block, *text.encoder.layer, *vision.encoder.layers]

    def encode(self, images: Tensor, questions: Tensor, mask: Tensor) -> Tensor:
        """What the writer sees: one vector for each sample, (n, 1, width)."""
        looked = self.vision(pixel_values=images).last_hidden_state.mean(dim=1)
        read = self.text(input_ids=questions, attention_mask=mask).last_hidden_state[:, 0]
        fused = self.fusion(torch.cat((looked, read), dim=-1))
        context: Tensor = self.writer.encoder(inputs_embeds=fused[:, None]).last_hidden_state
        return context

    def cross_entropy(self, context: Tensor, text: Tensor) -> Tensor:
        """(n,): for each sample the mean over the tokens of its text (n, a_len) that are no padding."""
        inputs = self.writer.prepare_decoder_input_ids_from_labels(text)
        logits = self.writer(
            encoder_outputs=BaseModelOutput(last_hidden_state=context), decoder_input_ids=inputs, use_cache=False
        ).logits
        losses = nn.functional.cross_entropy(
            logits.flatten(0, 1), text.flatten(), ignore_index=IGNORED, reduction="none"
        ).view_as(text)
        tokens = (text != IGNORED).sum(dim=1).clamp(min=1)
        return losses.sum(dim=1) / tokens
