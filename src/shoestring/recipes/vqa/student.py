"""The student: BLIP's vision transformer and PhoBERT, fused into one vector, which ViT5 reads as its whole input."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import BlipVisionModel, RobertaModel, T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from shoestring.recipes.vqa.samples import Sample

IGNORED = -100
"""The label of padding."""


class Batch(NamedTuple):
    """Of n samples; int64 but for images and weights."""

    images: Tensor
    """(n, 3, pixels, pixels) float32."""
    questions: Tensor
    """(n, longest)."""
    mask: Tensor
    """(n, longest), 0 where a question is padded."""
    whole: Tensor
    """(n, longest) tokens of the text in its format, -100 where it is padded."""
    answer: Tensor
    """(n, longest), the answer alone: what the whole begins with."""
    reasoning: Tensor
    """(n, longest), the reasoning alone."""
    weights: Tensor
    """(n,) float32 of the reasonings, 1 on average over the training data."""
    samples: list[Sample]
    """What they were made of; empty where only shapes matter."""


class Student(nn.Module):
    """Images and questions in, texts out. PhoBERT's pooler is among its parameters, as published, and unused."""

    def __init__(
        self,
        vision: BlipVisionModel,
        text: RobertaModel,
        writer: T5ForConditionalGeneration,
        *,
        dropout: tuple[float, float],
    ) -> None:
        """`dropout` is that of the fusion's two layers."""
        super().__init__()
        self.vision, self.text, self.writer = vision, text, writer
        seen = self.vision.config.hidden_size + self.text.config.hidden_size
        width = self.writer.config.d_model
        self.fusion = nn.Sequential(
            nn.Linear(seen, seen),
            nn.ReLU(),
            nn.Dropout(dropout[0]),
            nn.Linear(seen, width),
            nn.ReLU(),
            nn.Dropout(dropout[1]),
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

    def token_losses(self, context: Tensor, text: Tensor) -> Tensor:
        """(n, longest): the cross-entropy of each token of the texts, 0 where they are padded."""
        inputs = self.writer.prepare_decoder_input_ids_from_labels(text)
        logits = self.writer(
            encoder_outputs=BaseModelOutput(last_hidden_state=context), decoder_input_ids=inputs, use_cache=False
        ).logits
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), text.flatten(), ignore_index=IGNORED, reduction="none"
        ).view_as(text)

    def cross_entropy(self, context: Tensor, text: Tensor) -> Tensor:
        """(n,): for each sample the mean over the tokens of its text (n, longest) that are no padding."""
        return mean_over_tokens(self.token_losses(context, text), text)

    def write(self, context: Tensor, beginning: list[int], *, beams: int, longest: int) -> list[list[int]]:
        """The likeliest text that beam search finds for each context (n, 1, width), its `beginning` and at most
        `longest` tokens, without what starts it."""
        start = torch.tensor([[self.writer.config.decoder_start_token_id, *beginning]], device=context.device)
        writer: Any = self.writer
        found: Tensor = writer.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=context),
            attention_mask=context.new_ones(context.shape[:2], dtype=torch.int64),
            decoder_input_ids=start.expand(len(context), -1),
            num_beams=beams,
            do_sample=False,
            max_new_tokens=max(1, longest - len(beginning)),
            use_cache=True,
        )
        written: list[list[int]] = found[:, 1:].tolist()
        return written


def mean_over_tokens(losses: Tensor, text: Tensor) -> Tensor:
    """(n,): of what each token of `text` loses, both (n, longest); padding is left out."""
    kept = text != IGNORED
    return losses.where(kept, 0).sum(dim=1) / kept.sum(dim=1).clamp(min=1)
