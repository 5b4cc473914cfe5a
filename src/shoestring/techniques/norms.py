"""The classes of modules that have running statistics.

torch's classes have common base classes with private names (`torch/nn/modules/batchnorm.py`, the same from torch 2.10
to 2.13), from which other libraries derive too. If they do not exist, only torch's public classes are recognized.
"""

from torch import nn
from torch.nn.modules import batchnorm

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)

BATCH: tuple[type[nn.Module], ...] = (getattr(batchnorm, "_BatchNorm", nn.BatchNorm1d), *_BATCH_NORMS)
"""Norms with statistics over the samples of a microbatch."""

RUNNING: tuple[type[nn.Module], ...] = (
    getattr(batchnorm, "_NormBase", nn.BatchNorm1d),
    *_BATCH_NORMS,
    *_INSTANCE_NORMS,
)
"""All norms that may have running statistics."""


def trains_batch_norm(model: nn.Module) -> bool:
    """Return whether any BatchNorm computes its statistics over the microbatch."""
    return any(isinstance(module, BATCH) and module.training for module in model.modules())
