"""The batch of a head: what its model takes, and labels in the shape that its loss takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from shoestring.errors import UsageError
from shoestring.recipes.huggingface import configuration

OWN_RECIPE = "write a recipe of your own: a file with model(), batch() and loss()"
OTHER_HEAD = "name a head in `architectures` of its config.json (...ForCausalLM, ...ForSequenceClassification), or "


def batch(settings: Any, size: int, seq_len: int) -> dict[str, Any]:
    """`size` samples with the longest sequences; every label counts.

    A model of text that also takes images (LLaVA, Qwen2-VL) gets text alone. Raises UsageError for sequences that
    are longer than the model's positions, where these are weights (rotary ones go on beyond what the model was trained
    with), and for inputs and heads that are not known here.
    """
    kind = configuration.model_class(settings)
    name = kind.__name__
    # A class that only finds the right one (Auto...) takes what that takes: text.
    takes = set(inspect.signature(kind.forward).parameters) if hasattr(kind, "forward") else {"labels"}
    make = _INPUTS.get(getattr(kind, "main_input_name", "input_ids"))
    if make is None:
        raise UsageError(f"{name} takes {kind.main_input_name}, whose shape is not known here", hint=OWN_RECIPE)
    inputs = make(settings, size, seq_len)
    if "return_loss" in takes:  # images and texts that belong together
        return {**_tokens(settings, size, seq_len), **_image(settings, size, seq_len), "return_loss": True}
    if name.endswith(_UNKNOWN_HEADS) or not takes & {"labels", "start_positions"}:
        raise UsageError(f"{name} has no loss that could be made up here", hint=OTHER_HEAD + OWN_RECIPE)
    return {**inputs, **_labels(name, takes, inputs, size, seq_len)}


def _labels(name: str, takes: set[str], inputs: dict[str, Tensor], size: int, seq_len: int) -> dict[str, Tensor]:
    one = torch.zeros(size, dtype=torch.long)
    if name.endswith("ForQuestionAnswering"):
        return {"start_positions": one, "end_positions": one.clone()}
    if name.endswith("ForSemanticSegmentation"):
        return {"labels": torch.zeros(size, *inputs["pixel_values"].shape[2:], dtype=torch.long)}
    if name.endswith(("Classification", "ForNextSentencePrediction")) and not name.endswith("ForTokenClassification"):
        return {"labels": one}
    more = {"next_sentence_label": one} if "next_sentence_label" in takes else {}
    return {"labels": torch.zeros(size, seq_len, dtype=torch.long), **more}


def _tokens(settings: Any, size: int, seq_len: int) -> dict[str, Tensor]:
    text = settings.get_text_config()
    longest = getattr(text, "max_position_embeddings", None) or 0
    rotary = getattr(text, "rope_parameters", None)
    # Less than none is how XLNet says that there is no end.
    if 0 < longest < seq_len and not rotary:
        raise UsageError(f"seq_len={seq_len}: the model has {longest} positions")
    return {"input_ids": torch.zeros(size, seq_len, dtype=torch.long)}


def _image(settings: Any, size: int, _seq_len: int) -> dict[str, Tensor]:
    """(size, channels, height, width) float32 as large as the configuration says; 224 pixels where it says nothing."""
    vision = getattr(settings, "vision_config", settings)
    side = getattr(vision, "image_size", None) or 224
    height, width = (side, side) if isinstance(side, int) else side
    return {"pixel_values": torch.zeros(size, getattr(vision, "num_channels", 3), height, width)}


def _spectrum(settings: Any, size: int, _seq_len: int) -> dict[str, Tensor]:
    """(size, frequencies, frames) float32 of the longest sound: Whisper's first layers halve its frames."""
    if not hasattr(settings, "max_source_positions") or not hasattr(settings, "num_mel_bins"):
        raise UsageError(f"how long a sound {settings.model_type} takes is not known here", hint=OWN_RECIPE)
    return {"input_features": torch.zeros(size, settings.num_mel_bins, 2 * settings.max_source_positions)}


_INPUTS: dict[str, Callable[[Any, int, int], dict[str, Tensor]]] = {
    "input_ids": _tokens,
    "pixel_values": _image,
    "input_features": _spectrum,
}
"""By transformers' name for the main input of a model."""

_UNKNOWN_HEADS = ("ForMultipleChoice", "Detection", "ForInstanceSegmentation", "ForUniversalSegmentation")
"""Heads whose labels are lists of boxes or have a size that no configuration tells."""
