"""The student: features of BLIP's vision transformer and PhoBERT, fused into one vector, the only input of ViT5."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import BlipVisionModel, RobertaModel, T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from shoestring_recipes.vqa.samples import Sample

IGNORED = -100
"""The label of padding."""


class Batch(NamedTuple):
    """A batch of n samples; its tensors are int64 except images and weights."""

    images: Tensor
    """(n, 3, pixels, pixels) float32."""
    questions: Tensor
    """(n, longest)."""
    mask: Tensor
    """(n, longest), 0 for padding of the questions."""
    whole: Tensor
    """(n, longest), tokens of the whole text with its tags, -100 for padding."""
    answer: Tensor
    """(n, longest), the answer with its tags: the beginning of the whole text."""
    reasoning: Tensor
    """(n, longest), the reasoning with its tags."""
    weights: Tensor
    """(n,) float32, weights of the reasonings; their mean over the training data is 1."""
    samples: list[Sample]
    """The samples themselves; empty in batches for planning."""


class Student(nn.Module):
    """A model from images and questions to texts. PhoBERT's unused pooler is among its parameters, as published."""

    def __init__(
        self,
        vision: BlipVisionModel,
        text: RobertaModel,
        writer: T5ForConditionalGeneration,
        *,
        dropout: tuple[float, float],
    ) -> None:
        """Fuse the three models; `dropout` is that of the fusion's two layers."""
        super().__init__()
        self.vision, self.text, self.writer = vision, text, writer
        features = self.vision.config.hidden_size + self.text.config.hidden_size
        width = self.writer.config.d_model
        self.fusion = nn.Sequential(
            nn.Linear(features, features),
            nn.ReLU(),
            nn.Dropout(dropout[0]),
            nn.Linear(features, width),
            nn.ReLU(),
            nn.Dropout(dropout[1]),
        )

    def blocks(self) -> list[nn.Module]:
        """Return the layers of ViT5's decoder, ViT5's encoder, PhoBERT and the vision transformer."""
        writer, text, vision = self.writer, self.text, self.vision
        return [*writer.decoder.block, *writer.encoder.block, *text.encoder.layer, *vision.encoder.layers]

    def encode(self, images: Tensor, questions: Tensor, mask: Tensor) -> Tensor:
        """Return the input of ViT5's decoder: one vector for each sample, (n, 1, width)."""
        image_features = self.vision(pixel_values=images).last_hidden_state.mean(dim=1)
        question_features = self.text(input_ids=questions, attention_mask=mask).last_hidden_state[:, 0]
        fused = self.fusion(torch.cat((image_features, question_features), dim=-1))
        context: Tensor = self.writer.encoder(inputs_embeds=fused[:, None]).last_hidden_state
        return context

    def token_losses(self, context: Tensor, text: Tensor) -> Tensor:
        """Return the cross-entropy of each token of the texts, (n, longest), 0 for padding."""
        inputs = self.writer.prepare_decoder_input_ids_from_labels(text)
        logits = self.writer(
            encoder_outputs=BaseModelOutput(last_hidden_state=context), decoder_input_ids=inputs, use_cache=False
        ).logits
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), text.flatten(), ignore_index=IGNORED, reduction="none"
        ).view_as(text)

    def cross_entropy(self, context: Tensor, text: Tensor) -> Tensor:
        """Return each sample's mean cross-entropy (n,) over the tokens of its text (n, longest), except padding."""
        return mean_over_tokens(self.token_losses(context, text), text)

    def generate(self, context: Tensor, beginning: list[int], *, beams: int, max_length: int) -> list[list[int]]:
        """Return the result of beam search for each context (n, 1, width), without the decoder's start token.

        A text begins with `beginning` and has at most `max_length` tokens.
        """
        start = torch.tensor([[self.writer.config.decoder_start_token_id, *beginning]], device=context.device)
        writer: Any = self.writer
        output: Tensor = writer.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=context),
            attention_mask=context.new_ones(context.shape[:2], dtype=torch.int64),
            decoder_input_ids=start.expand(len(context), -1),
            num_beams=beams,
            do_sample=False,
            max_new_tokens=max(1, max_length - len(beginning)),
            use_cache=True,
        )
        tokens: list[list[int]] = output[:, 1:].tolist()
        return tokens


def mean_over_tokens(losses: Tensor, text: Tensor) -> Tensor:
    """Return each sample's mean (n,) of `losses` over the tokens of `text`, both (n, longest), except padding."""
    mask = text != IGNORED
    return losses.where(mask, 0).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
