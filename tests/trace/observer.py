"""The bytes of real tensors that live, seen by whoever calls an operator."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode


class Observer(TorchDispatchMode):
    """Every storage that an operator took or gave; a DTensor has none of its own."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self.most = 0
        self._live: dict[int, weakref.ref[Any]] = {}
        self._see(tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._see(torch.utils._pytree.tree_leaves((args, kwargs, result)))
        self.most = max(self.most, self.now())
        return result

    def now(self) -> int:
        # FSDP2 empties storages that it keeps, so sizes are asked for anew.
        return sum(storage.nbytes() for known in list(self._live.values()) if (storage := known()) is not None)

    def peak(self) -> int:
        """The most since this was asked last."""
        most, self.most = self.most, self.now()
        return most

    def _see(self, tensors: Iterable[Any]) -> None:
        for tensor in tensors:
            if isinstance(tensor, Tensor) and not isinstance(tensor, DTensor):
                storage = tensor.untyped_storage()
                address = storage._cdata
                if address not in self._live:
                    self._live[address] = weakref.ref(storage, lambda _, at=address: self._live.pop(at))
