"""What `self.log` passes on during an evaluation, averaged as Lightning averages it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shoestring.base.errors import UsageError
from shoestring.techniques import trees

_COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": torch.add,
    "sum": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
}
"""The reductions, and how a value is combined with those before."""


@dataclass
class Reduced:
    """The weighted mean, the sum, the minimum or the maximum of a number that each batch has."""

    reduction: str
    value: Any = None
    """The sum, minimum or maximum so far; None without a batch."""
    weight: int = 0

    def add(self, value: Tensor, weight: int) -> None:
        """Add the number of a batch."""
        value = value * weight if self.reduction == "mean" else value
        self.value = value if self.value is None else _COMBINE[self.reduction](self.value, value)
        self.weight += weight

    def compute(self) -> Tensor:
        """Return the reduced number of at least one batch."""
        result: Tensor = self.value / self.weight if self.reduction == "mean" else self.value
        return result


class Logs:
    """The values that a LightningModule has logged since the evaluation began. Outside of one, nothing is recorded."""

    def __init__(self) -> None:
        self._is_open, self._batch_size = False, 1
        self._values: dict[str, Reduced] = {}
        self._metrics: dict[str, Any] = {}

    def begin(self) -> None:
        """Begin an evaluation."""
        self._is_open, self._values, self._metrics = True, {}, {}

    def begin_batch(self, batch: Any) -> None:
        """Weigh what is logged from now on by the samples of `batch`; of None, by 1."""
        self._batch_size = batch_size(batch)

    @property
    def names(self) -> list[str]:
        return [*self._values, *self._metrics]

    def finish(self) -> dict[str, Any]:
        """End the evaluation. Returns its metrics by name."""
        self._is_open = False
        metrics = {name: value.compute() for name, value in self._values.items()}
        return metrics | {name: metric.compute() for name, metric in self._metrics.items()}

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,  # noqa: ARG002 - the parameters of LightningModule.log
        logger: bool | None = None,  # noqa: ARG002
        on_step: bool | None = None,  # noqa: ARG002
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        batch_size: int | None = None,
        **_: Any,
    ) -> None:
        """Record a value, a metric of torchmetrics or a mapping of them: `LightningModule.log`."""
        if not self._is_open or on_epoch is False:
            return
        if isinstance(value, Mapping):
            for key, item in value.items():
                self.log(f"{name}.{key}", item, on_epoch=on_epoch, reduce_fx=reduce_fx, batch_size=batch_size)
            return
        if callable(getattr(value, "compute", None)):
            self._metrics[name] = value
            return
        reduction = reduce_fx if isinstance(reduce_fx, str) else getattr(reduce_fx, "__name__", "")
        if reduction not in _COMBINE:
            raise UsageError(
                f"self.log({name!r}, reduce_fx={reduce_fx!r}) cannot be used",
                hint=f"use one of {', '.join(_COMBINE)}",
            )
        number = value.detach().clone() if isinstance(value, Tensor) else torch.tensor(value)
        number = number.squeeze() if number.is_floating_point() else number.squeeze().to(torch.get_default_dtype())
        self._values.setdefault(name, Reduced(reduction)).add(number, batch_size or self._batch_size)


def batch_size(batch: Any) -> int:
    """Return the number of samples of a batch as Lightning finds it: the first dimension of its first tensor."""
    tensors = (leaf for leaf in trees.leaves(batch) if isinstance(leaf, Tensor))
    return next((len(tensor) if tensor.ndim else 1 for tensor in tensors), 1)
