"""Observe the bytes of live real tensors at each operator."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode


class Observer(TorchDispatchMode):
    """Tracks every storage among an operator's arguments and results; a DTensor has no storage of its own."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self._peak_bytes = 0
        self._live: dict[int, weakref.ref[Any]] = {}
        self._track(tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._track(torch.utils._pytree.tree_leaves((args, kwargs, result)))
        self._peak_bytes = max(self._peak_bytes, self.live_bytes())
        return result

    def live_bytes(self) -> int:
        # FSDP2 resizes storages without freeing them, so sizes are read again.
        return sum(storage.nbytes() for reference in list(self._live.values()) if (storage := reference()) is not None)

    def pop_peak_bytes(self) -> int:
        """Return the peak since the last call."""
        peak_bytes, self._peak_bytes = self._peak_bytes, self.live_bytes()
        return peak_bytes

    def _track(self, tensors: Iterable[Any]) -> None:
        for tensor in tensors:
            if isinstance(tensor, Tensor) and not isinstance(tensor, DTensor):
                storage = tensor.untyped_storage()
                address = storage._cdata
                if address not in self._live:
                    self._live[address] = weakref.ref(storage, lambda _, address=address: self._live.pop(address))
