"""Batches for any model class: the inputs of the model, and labels in the shape that the loss of its head requires."""

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


def build_batch(config: Any, size: int, seq_len: int) -> dict[str, Any]:
    """Return `size` samples with sequences of `seq_len` tokens; no label is ignored by the loss.

    A text model that also accepts images (LLaVA, Qwen2-VL) gets text only. Raises UsageError for sequences that are
    longer than the learned positions (rotary positions have no limit), and for unsupported inputs and heads.
    """
    model_class = configuration.find_model_class(config)
    name = model_class.__name__
    # An Auto... class has no forward; it creates a text model.
    has_forward = hasattr(model_class, "forward")
    arguments = set(inspect.signature(model_class.forward).parameters) if has_forward else {"labels"}
    main_input = getattr(model_class, "main_input_name", "input_ids")
    make_inputs = _INPUTS.get(main_input)
    if make_inputs is None:
        raise UsageError(f"{name} takes {main_input}, an input whose shape hf: does not know", hint=OWN_RECIPE)
    inputs = make_inputs(config, size, seq_len)
    if "return_loss" in arguments:  # a contrastive loss of images and texts
        return {**_make_tokens(config, size, seq_len), **_make_images(config, size, seq_len), "return_loss": True}
    if name.endswith(_UNSUPPORTED_HEADS) or not arguments & {"labels", "start_positions"}:
        raise UsageError(f"{name} has no loss that hf: can make labels for", hint=OTHER_HEAD + OWN_RECIPE)
    return {**inputs, **_make_labels(name, arguments, inputs, size, seq_len)}


def _make_labels(
    name: str, arguments: set[str], inputs: dict[str, Tensor], size: int, seq_len: int
) -> dict[str, Tensor]:
    per_sample = torch.zeros(size, dtype=torch.long)
    if name.endswith("ForQuestionAnswering"):
        return {"start_positions": per_sample, "end_positions": per_sample.clone()}
    if name.endswith("ForSemanticSegmentation"):
        return {"labels": torch.zeros(size, *inputs["pixel_values"].shape[2:], dtype=torch.long)}
    if name.endswith(("Classification", "ForNextSentencePrediction")) and not name.endswith("ForTokenClassification"):
        return {"labels": per_sample}
    next_sentence = {"next_sentence_label": per_sample} if "next_sentence_label" in arguments else {}
    return {"labels": torch.zeros(size, seq_len, dtype=torch.long), **next_sentence}


def _make_tokens(config: Any, size: int, seq_len: int) -> dict[str, Tensor]:
    text = config.get_text_config()
    longest = getattr(text, "max_position_embeddings", None) or 0
    rotary = getattr(text, "rope_parameters", None)
    # XLNet has a negative number of positions, which means no limit.
    if 0 < longest < seq_len and not rotary:
        raise UsageError(f"seq_len={seq_len} is too long: the model has {longest} positions")
    return {"input_ids": torch.zeros(size, seq_len, dtype=torch.long)}


def _make_images(config: Any, size: int, _seq_len: int) -> dict[str, Tensor]:
    """Return (size, channels, height, width) float32 with the configuration's image size, by default 224 pixels."""
    vision = getattr(config, "vision_config", config)
    side = getattr(vision, "image_size", None) or 224
    height, width = (side, side) if isinstance(side, int) else side
    return {"pixel_values": torch.zeros(size, getattr(vision, "num_channels", 3), height, width)}


def _make_spectra(config: Any, size: int, _seq_len: int) -> dict[str, Tensor]:
    """Return (size, frequencies, frames) float32 of the longest audio: Whisper's first layers halve the frames."""
    if not hasattr(config, "max_source_positions") or not hasattr(config, "num_mel_bins"):
        raise UsageError(f"hf: does not know the audio length of {config.model_type}", hint=OWN_RECIPE)
    return {"input_features": torch.zeros(size, config.num_mel_bins, 2 * config.max_source_positions)}


_INPUTS: dict[str, Callable[[Any, int, int], dict[str, Tensor]]] = {
    "input_ids": _make_tokens,
    "pixel_values": _make_images,
    "input_features": _make_spectra,
}
"""Functions that make the inputs, by transformers' name of a model's main input."""

_UNSUPPORTED_HEADS = ("ForMultipleChoice", "Detection", "ForInstanceSegmentation", "ForUniversalSegmentation")
"""Heads whose labels are lists of boxes, or have a size that is not in the configuration."""
