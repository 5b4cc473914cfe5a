"""The average of the weights in a trace: the memory and the operators of `training/engine/averaging.py`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from shoestring.planning.trace.recorder import Recorder


class TracedAverages:
    """The averages of the trained `parameters`; none if `decay` is None."""

    def __init__(self, recorder: Recorder, parameters: Sequence[nn.Parameter], decay: float | None) -> None:
        self._decay = decay
        self._weights = [parameter.detach() for parameter in parameters] if decay is not None else []
        self._averages = [
            weight.to(torch.promote_types(weight.dtype, torch.float32), copy=True) for weight in self._weights
        ]
        recorder.label(self._averages, "averaged weights")

    def add(self) -> None:
        """Include the weights after an update."""
        if self._decay is None:
            return
        if all(average.dtype == weight.dtype for average, weight in self._pairs()):
            torch._foreach_lerp_(self._averages, self._weights, 1 - self._decay)
            return
        for average, weight in self._pairs():
            average.lerp_(weight.to(average.dtype), 1 - self._decay)

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self._averages, self._weights, strict=True))
