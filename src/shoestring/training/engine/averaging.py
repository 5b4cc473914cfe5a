"""An exponential moving average of the trained weights, which is evaluated and saved for use instead of them.

The formula is that of `torch.optim.swa_utils.get_ema_multi_avg_fn`: after the first update the average is the weights,
after each later one decay * average + (1 - decay) * weights. An update that is skipped because it is not finite does
not move the average. Buffers, such as a BatchNorm's statistics, are not averaged.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.training.checkpoint.compatibility import state_mismatches
from shoestring.training.checkpoint.divided import own
from shoestring.training.engine import foreach

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class AveragedWeights:
    """The averages of a model's trained parameters, on the same devices, in fp32 or the wider type of a parameter."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = decay
        self._updates = 0
        """The number of updates that the average includes."""
        weights = {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.averages = {name: _widened(weight) for name, weight in weights.items()}
        """The averages by the parameters' names."""
        # Of weights that are divided among ranks, the rows of this one.
        self._weights = {name: own(weight) for name, weight in weights.items()}
        self._averages = {name: own(average) for name, average in self.averages.items()}

    def add(self) -> None:
        """Include the weights after an update. On out-of-memory, which needs narrower weights, a part is included."""
        averages, weights = list(self._averages.values()), list(self._weights.values())
        if self._updates:
            foreach.lerp(averages, weights, 1 - self._decay)
        else:
            foreach.copy(averages, weights)
        self._updates += 1

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Return a context in which the model has the averages; afterwards its weights have the same bits as before.

        Weights and averages of one type are exchanged in place, without memory and without new addresses, on which
        CUDA graphs and cuDNN's layers depend. Narrower weights are copied first, for the time of the context.
        """
        # Parameters that share memory are exchanged once.
        by_memory = {
            (weight.data_ptr(), weight.shape, weight.stride()): (weight, self._averages[name])
            for name, weight in self._weights.items()
        }
        pairs = list(by_memory.values())
        narrow = [(weight, average) for weight, average in pairs if weight.dtype != average.dtype]
        originals = [weight.clone() for weight, _ in narrow]  # before any change: it may run out of memory
        equal = [(weight, average) for weight, average in pairs if weight.dtype == average.dtype]
        _exchange(equal)
        for weight, average in narrow:
            weight.copy_(average)
        try:
            yield
        finally:
            _exchange(equal)
            for (weight, _), original in zip(narrow, originals, strict=True):
                weight.copy_(original)

    def pack(self) -> dict[str, Any]:
        """Return the sections of a checkpoint."""
        return {"averaged": dict(self.averages), "averaging": {"updates": self._updates}}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Load the sections that `pack` returned, in which `problems` has seen none."""
        averages = saved["averaged"]
        foreach.copy(list(self._averages.values()), [own(averages[name]) for name in self._averages])
        self._updates = saved["averaging"]["updates"]

    def problems(self, saved: Mapping[str, Any]) -> list[str]:
        """Return the reasons why the sections do not belong to this model."""
        missing = [f"the section {name!r} is missing" for name in ("averaged", "averaging") if name not in saved]
        if missing:
            return missing
        progress = saved["averaging"]
        updates = progress.get("updates") if isinstance(progress, dict) else None
        return [
            *([] if type(updates) is int and updates >= 0 else [f"averaging: {str(progress)[:40]} has no updates"]),
            *(f"averaged: {problem}" for problem in state_mismatches(saved["averaged"], self.averages)),
        ]


def _widened(weight: Tensor) -> Tensor:
    return weight.to(torch.promote_types(weight.dtype, torch.float32), copy=True)


def _exchange(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Exchange the bits of two tensors of one type."""
    for first, second in pairs:
        bits, other_bits = (tensor.view(_INTEGERS[tensor.element_size()]) for tensor in (first, second))
        bits.bitwise_xor_(other_bits)
        other_bits.bitwise_xor_(bits)
        bits.bitwise_xor_(other_bits)
