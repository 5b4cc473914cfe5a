"""Batches for any model class: the inputs of the model, and labels in the shape that the loss of its head requires."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from shoestring.base.errors import UsageError
from shoestring.integrations.huggingface import configuration, diffusion, heads, losses, preference
from shoestring.integrations.huggingface.inputs import build_inputs, make_images, make_tokens
from shoestring.integrations.huggingface.lengths import text_length
from shoestring.integrations.huggingface.library_errors import OWN_RECIPE, explained, hint_at_file

if TYPE_CHECKING:
    from shoestring.integrations.huggingface import Options

OTHER_HEAD = "choose a head with head= (causal-lm, text-classification, feature-extraction, ...), or "

OBJECTS = 10
"""Objects in an image, for detection: COCO's images have 7 on average."""


def make(source: str, size: int, options: Options) -> dict[str, Any]:
    """Return `size` samples for the model of a configuration. Raises UsageError where none can be made."""
    config = configuration.read(source)
    if isinstance(config, diffusion.Configuration):
        with explained(f"no samples can be made for {config.class_name}", hint_at_file(source)):
            return dict(diffusion.build_batch(config, size))
    model_class = heads.find_model_class(config, options.head)
    if options.method == "dpo":
        return preference.full_pairs(size, text_length(config, options.seq_len)[0])
    with explained(f"no samples can be made for {model_class.__name__}", hint_at_file(source)):
        return build_batch(model_class, config, size, options)


def build_batch(model_class: Any, config: Any, size: int, options: Options) -> dict[str, Any]:
    """Return `size` samples for the class; no label is ignored by the loss.

    A text model that also accepts images (LLaVA, Qwen2-VL) gets text only. Raises UsageError for unsupported inputs and
    heads.
    """
    name = model_class.__name__
    arguments = arguments_of(model_class)
    inputs: dict[str, Any] = build_inputs(model_class, config, size, options)
    if "return_loss" in arguments:  # a contrastive loss of images and texts
        return {**make_tokens(config, size, options), **make_images(config, size, options), "return_loss": True}
    if name.endswith(_UNSUPPORTED_HEADS):
        raise UsageError(f"{name} has no loss that hf: can make labels for", hint=OTHER_HEAD + OWN_RECIPE)
    if "input_boxes" in arguments:
        return {**inputs, "input_boxes": torch.zeros(size, 1, 4), "multimask_output": False}
    if not arguments & {"labels", "start_positions"}:
        return losses.paired(inputs)
    length, _ = text_length(config, options.seq_len)
    labels = _make_labels(name, arguments, inputs, size, length)
    if "decoder_input_ids" in arguments and getattr(config, "pad_token_id", None) is None:
        labels["decoder_input_ids"] = labels["labels"].clone()  # the library makes them of labels and this token
    return {**inputs, **labels}


def arguments_of(model_class: Any) -> set[str]:
    """Return the names of the arguments of the class's `forward`."""
    return set(inspect.signature(model_class.forward).parameters)


def _make_labels(name: str, arguments: set[str], inputs: dict[str, Tensor], size: int, length: int) -> dict[str, Any]:
    per_sample = torch.zeros(size, dtype=torch.long)
    if name.endswith("ForQuestionAnswering"):
        return {"start_positions": per_sample, "end_positions": per_sample.clone()}
    if name.endswith("Detection"):
        one_image = {"class_labels": torch.zeros(OBJECTS, dtype=torch.long), "boxes": torch.zeros(OBJECTS, 4)}
        return {"labels": [dict(one_image) for _ in range(size)]}
    if name.endswith("ForSemanticSegmentation"):
        return {"labels": torch.zeros(size, *inputs["pixel_values"].shape[2:], dtype=torch.long)}
    if name.endswith(("Classification", "ForNextSentencePrediction")) and not name.endswith("ForTokenClassification"):
        return {"labels": per_sample}
    next_sentence = {"next_sentence_label": per_sample} if "next_sentence_label" in arguments else {}
    return {"labels": torch.zeros(size, length, dtype=torch.long), **next_sentence}


_UNSUPPORTED_HEADS = (
    *("ForMultipleChoice", "ForInstanceSegmentation", "ForUniversalSegmentation", "ForZeroShotObjectDetection"),
    *("ForMaskedImageModeling", "ForXVector", "ForAudioFrameClassification"),
)
"""Heads whose labels are lists of boxes, or have a size that is not in the configuration."""
