"""The metrics of torchmetrics in a LightningModule."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._guards import detect_fake_mode  # public in no version; the fake mode itself is as private

_CACHE = "_shoestring_metrics"


def metrics_of(module: nn.Module) -> list[Any]:
    """Return the metrics in the module, recognized without importing torchmetrics."""
    if _CACHE not in module.__dict__:
        module.__dict__[_CACHE] = _find_metrics(module)  # every microbatch asks for them
    metrics: list[Any] = module.__dict__[_CACHE]
    return metrics


def _find_metrics(module: nn.Module) -> list[Any]:
    return [
        part
        for part in module.modules()
        if any(base.__name__ == "Metric" and base.__module__.startswith("torchmetrics.") for base in type(part).__mro__)
    ]


def reset(module: nn.Module) -> None:
    """Forget what the metrics have seen."""
    for metric in metrics_of(module):
        metric.reset()


def is_traced(batch_tensors: list[Tensor]) -> bool:
    """Return whether the tensors have no values: an estimate traces the update."""
    return detect_fake_mode(batch_tensors) is not None


def disable(module: nn.Module) -> None:
    """Let the metrics compute nothing: their checks need values, and their states are not on the simulated device."""
    for metric in metrics_of(module):
        metric.__dict__["forward"] = metric.__dict__["compute"] = _zero
        metric.__dict__["update"] = metric.__dict__["reset"] = _nothing


def _zero(*_: Any, **__: Any) -> Tensor:
    return torch.zeros(())


def _nothing(*_: Any, **__: Any) -> None:
    pass
