"""TF32 for matrix products of fp32 data: 10 bits of mantissa instead of 23, on tensor cores."""

from __future__ import annotations

import torch

from shoestring.base.settings import Settings

_allowed: list[bool] = []
"""Holds an entry while the setting of a session in this process has allowed TF32."""


def apply(settings: Settings) -> None:
    """Allow TF32 for matrix products if the settings say so; otherwise what the recipe has chosen itself remains.

    For convolutions PyTorch allows it by default. The flag is read only if the setting is on, because reading it fails
    in a process in which a recipe has set `fp32_precision`.
    """
    if settings.tf32 and not torch.backends.cuda.matmul.allow_tf32:
        torch.backends.cuda.matmul.allow_tf32 = True
        _allowed.append(True)
    elif not settings.tf32 and _allowed:
        torch.backends.cuda.matmul.allow_tf32 = False
        _allowed.clear()
