"""Which modules keep running statistics.

torch's classes have common bases with private names (`torch/nn/modules/batchnorm.py`, the same from torch 2.6 to 2.13),
from which other libraries derive too. Where they are not, the public classes are all that is known.
"""

from torch import nn
from torch.nn.modules import batchnorm

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)

BATCH: tuple[type[nn.Module], ...] = (getattr(batchnorm, "_BatchNorm", nn.BatchNorm1d), *_BATCH_NORMS)
"""Whose statistics are over the samples of a microbatch."""

RUNNING: tuple[type[nn.Module], ...] = (
    getattr(batchnorm, "_NormBase", nn.BatchNorm1d),
    *_BATCH_NORMS,
    *_INSTANCE_NORMS,
)
"""All that may keep running statistics."""
