"""The norm of a gradient whose parts are on two devices, with the bits that it has on one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def clip_gradients(parameters: Sequence[Tensor], largest: float) -> Tensor:
    """Scale the gradients so that their norm is at most `largest`, and return the norm before, a scalar.

    On one device this is torch's `clip_grad_norm_`. On two it would add the norms of the tensors in another order, as
    it groups them by their devices.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if len({gradient.device for gradient in gradients}) < 2:
        norm: Tensor = nn.utils.clip_grad_norm_(parameters, largest)
        return norm
    norms: dict[int, Tensor] = {}
    for device in dict.fromkeys(gradient.device for gradient in gradients):
        own = [index for index, gradient in enumerate(gradients) if gradient.device == device]
        norms |= zip(own, torch._foreach_norm([gradients[index] for index in own], 2.0), strict=True)
    in_order = [norms[index].to(gradients[0].device) for index in range(len(gradients))]
    total: Tensor = torch.linalg.vector_norm(torch.stack(in_order), 2.0)
    nn.utils.clip_grads_with_norm_(parameters, largest, total)
    return total
