"""Predictions of a LightningModule by `predict_step`, one for each sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from shoestring.integrations.lightning.evaluation import call, transferred
from shoestring.integrations.lightning.loaders import PartBatch
from shoestring.integrations.lightning.logs import batch_size


def predict(module: Any, data_module: Any, batch: Any) -> Any:
    """Return the predictions for the samples of a batch: those of a dict or a tuple of tensors are split by sample."""
    if isinstance(batch, PartBatch):
        batch = batch.value
    with module._trainer.during("prediction"):
        batch = transferred(data_module or module, batch)
        return by_sample(call(module, "predict_step", batch, 0), batch_size(batch))


def by_sample(result: Any, samples: int) -> Any:
    """Return a result as one value for each of `samples`; a result that is not divisible is returned unchanged."""
    if isinstance(result, Mapping) and all(_is_divisible(value, samples) for value in result.values()):
        return [{name: value[index] for name, value in result.items()} for index in range(samples)]
    if isinstance(result, tuple) and all(isinstance(value, Tensor) and len(value) == samples for value in result):
        return [[value[index] for value in result] for index in range(samples)]
    return result


def _is_divisible(value: Any, samples: int) -> bool:
    return isinstance(value, Tensor | list) and len(value) == samples
