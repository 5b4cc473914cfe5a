"""What `self.log` passes on during an evaluation, averaged as Lightning averages it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shoestring.errors import UsageError
from shoestring.techniques import trees

_REDUCTIONS = ("mean", "sum", "min", "max")


@dataclass
class _Value:
    """A number that is logged once per batch."""

    reduction: str
    value: Tensor
    weight: int

    def add(self, value: Tensor, weight: int) -> None:
        if self.reduction == "mean":
            self.value, self.weight = self.value + value * weight, self.weight + weight
        elif self.reduction == "sum":
            self.value = self.value + value
        else:
            self.value = getattr(torch, f"{self.reduction}imum")(self.value, value)

    def compute(self) -> Any:
        return self.value / self.weight if self.reduction == "mean" else self.value


class Logs:
    """The values that a LightningModule has logged since the evaluation began. Outside of one, nothing is recorded."""

    def __init__(self) -> None:
        self._is_open, self._batch_size = False, 1
        self._values: dict[str, _Value] = {}
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
        if reduction not in _REDUCTIONS:
            raise UsageError(
                f"self.log({name!r}, reduce_fx={reduce_fx!r}) cannot be used",
                hint=f"use one of {', '.join(_REDUCTIONS)}",
            )
        number = value.detach().clone() if isinstance(value, Tensor) else torch.tensor(value)
        number = number.squeeze() if number.is_floating_point() else number.squeeze().to(torch.get_default_dtype())
        weight = batch_size or self._batch_size
        if name in self._values:
            self._values[name].add(number, weight)
        else:
            scaled = number * weight if reduction == "mean" else number
            self._values[name] = _Value(reduction, scaled, weight)


def batch_size(batch: Any) -> int:
    """Return the number of samples of a batch as Lightning finds it: the first dimension of its first tensor."""
    tensors = (leaf for leaf in trees.leaves(batch) if isinstance(leaf, Tensor))
    return next((len(tensor) if tensor.ndim else 1 for tensor in tensors), 1)
