"""Losses of models without a loss of their own, and of those whose own loss reads values from the GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from shoestring.base.errors import UsageError
from shoestring.integrations.huggingface import Loop
from shoestring.integrations.huggingface.library_errors import OWN_RECIPE
from shoestring.integrations.huggingface.loops import outputs

OTHER = "other_"
"""Prefix of the names of a batch's second texts: those that belong to the first ones."""

_SCALE = 20.0
"""The factor on cosine similarities, as in sentence-transformers' `MultipleNegativesRankingLoss`."""


def paired(inputs: dict[str, Tensor]) -> dict[str, Any]:
    """Return the batch of a model without a head: pairs of texts, or the other inputs unchanged."""
    if "input_ids" not in inputs:
        return dict(inputs)
    return {**inputs, **{OTHER + name: tensor.clone() for name, tensor in inputs.items()}}


def loss(
    model: Any, batch: dict[str, Any], *, loop: Loop = "shoestring", version: str | None = None
) -> tuple[Tensor, Any]:
    """Return the model's own mean loss, and its outputs; or, without one, the loss of its kind of output.

    Texts without a head are encoded in pairs, as sentence encoders are trained: each text of the batch is to be nearest
    to its partner. The features of images and audio are compared with zeros, which stands for any loss of the features.
    Masks are compared with masks.
    """
    pairs = {name.removeprefix(OTHER): tensor for name, tensor in batch.items() if name.startswith(OTHER)}
    if pairs:
        first = {name: tensor for name, tensor in batch.items() if not name.startswith(OTHER)}
        return _contrastive(_features(model(**first)), _features(model(**pairs))), None
    has_frames = "input_values" in batch or "input_features" in batch
    if has_frames and "labels" in batch and batch["labels"].dim() == 2 and hasattr(model.config, "ctc_loss_reduction"):
        return _alignment(model, batch), None
    result = outputs(model, batch, loop, version)
    if getattr(result, "loss", None) is not None:
        return result.loss, result
    masks = getattr(result, "pred_masks", None)
    if masks is not None:
        zeros = torch.zeros_like(masks, dtype=torch.float32)
        return functional.binary_cross_entropy_with_logits(masks.float(), zeros), result
    return _features(result).float().square().mean(), result


def _features(result: Any) -> Tensor:
    """Return the mean of the last layer over the positions of each sample: (samples, width)."""
    hidden = getattr(result, "last_hidden_state", None)
    if hidden is None:
        raise UsageError(
            f"the model returns {type(result).__name__}, which has neither a loss nor features",
            hint=f"choose a head with head=, or {OWN_RECIPE}",
        )
    features: Tensor = hidden.mean(1) if hidden.dim() == 3 else hidden.flatten(2).mean(2)
    return features


def _contrastive(first: Tensor, second: Tensor) -> Tensor:
    similarities = functional.normalize(first, dim=1) @ functional.normalize(second, dim=1).T
    return functional.cross_entropy(similarities * _SCALE, torch.arange(len(first), device=first.device))


def _alignment(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Return the CTC loss as the models of audio compute it, with all labels in one tensor.

    Their own code selects the labels that are not padding, so that the GPU is waited for.
    """
    config = model.config
    logits = model(**{name: tensor for name, tensor in batch.items() if name != "labels"}).logits
    log_probabilities = functional.log_softmax(logits, dim=-1, dtype=torch.float32).transpose(0, 1)
    frames, labels = log_probabilities.shape[0], batch["labels"]
    labels = labels[:, :frames]
    ctc_loss: Any = functional.ctc_loss  # its annotations lack lengths as numbers
    total: Tensor = ctc_loss(
        log_probabilities,
        labels,
        (frames,) * len(labels),
        (labels.shape[1],) * len(labels),
        blank=config.pad_token_id or 0,
        reduction=config.ctc_loss_reduction,
        zero_infinity=config.ctc_zero_infinity,
    )
    return total
