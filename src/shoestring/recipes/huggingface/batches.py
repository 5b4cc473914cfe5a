"""The batch of a head: token ids, and labels in the shape that its loss takes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoestring.errors import QuestionError
from shoestring.recipes.huggingface import configuration


def batch(settings: Any, size: int, seq_len: int) -> dict[str, Tensor]:
    """`size` samples with the longest sequences; every label counts.

    Raises QuestionError for sequences that are longer than the model's positions, where these are weights; rotary
    ones go on beyond what the model was trained with.
    """
    text = settings.get_text_config()
    longest = getattr(text, "max_position_embeddings", None)
    rotary = getattr(text, "rope_parameters", None)
    if longest and seq_len > longest and not rotary:
        raise QuestionError(f"seq_len={seq_len}: the model has {longest} positions")
    name = configuration.model_class(settings).__name__
    tokens = torch.zeros(size, seq_len, dtype=torch.long)
    if name.endswith("ForSequenceClassification"):
        return {"input_ids": tokens, "labels": torch.zeros(size, dtype=torch.long)}
    if name.endswith("ForQuestionAnswering"):
        place = torch.zeros(size, dtype=torch.long)
        return {"input_ids": tokens, "start_positions": place, "end_positions": place.clone()}
    return {"input_ids": tokens, "labels": tokens.clone()}
