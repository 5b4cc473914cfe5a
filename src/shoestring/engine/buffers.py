"""A model's buffers as they were when an update began, for the case that it has to begin again."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shoestring.engine import foreach
from shoestring.engine.memory import HalfDoneError
from shoestring.techniques import norms
from shoestring.techniques.slots import buffers, put
from shoestring.units import MIB

SMALL = MIB
"""Bytes up to which a buffer is copied whether it changes or not: statistics are small, tables and masks are not."""


@dataclass
class _Kept:
    module: nn.Module
    name: str
    tensor: Tensor
    version: int | None
    copy: Tensor | None = None


class Buffers:
    """Running statistics and whatever else a forward changes besides what it returns.

    Small buffers, and those of normalisations, are copied for every update into memory that is taken once. A large
    one is copied from the first update on that follows one in which it changed: a table that never changes costs
    nothing, and it is noticed when it does. (torch counts changes of a tensor, but not those that its kernels for
    BatchNorm make. Where it does not count, all are copied.)
    """

    def __init__(self, model: nn.Module) -> None:
        # Walking through a large model takes longer than copying its statistics, and its modules stay.
        self._modules = [module for module in model.modules() if buffers(module)]
        self._kept: dict[tuple[int, str], _Kept] = {}

    def keep(self) -> None:
        """Remember the buffers as they are now."""
        if self._modules:
            self._keep()

    @torch.no_grad()
    def _keep(self) -> None:
        before, self._kept = self._kept, {}
        for module in self._modules:
            for name, tensor in buffers(module).items():
                if tensor is None:
                    continue
                key = (id(module), name)
                old = before.get(key)
                if old is not None and old.copy is not None and old.tensor is tensor:
                    old.version = _version(tensor)
                    self._kept[key] = old
                    continue
                now = _Kept(module, name, tensor, _version(tensor))
                if old is not None and old.copy is not None and _alike(old.copy, tensor):
                    now.copy = old.copy
                elif (
                    isinstance(module, norms.RUNNING)
                    or tensor.nbytes <= SMALL
                    or now.version is None
                    or (old and _changed(old, tensor))
                ):
                    now.copy = torch.empty_like(tensor)
                self._kept[key] = now
        _copy([(kept.copy, kept.tensor) for kept in self._kept.values() if kept.copy is not None])

    @torch.no_grad()
    def restore(self) -> None:
        """Bring them back.

        Raises HalfDoneError where one changed that was not copied.
        """
        for kept in self._kept.values():
            put(kept.module, kept.name, kept.tensor)
            if kept.copy is None and _changed(kept, kept.tensor):
                raise HalfDoneError(
                    f"the buffer {kept.name} has changed in an update that ran out of memory",
                    hint="go on from the last checkpoint",
                )
        _copy([(kept.tensor, kept.copy) for kept in self._kept.values() if kept.copy is not None])


def _version(tensor: Tensor) -> int | None:
    """How often it was written to. torch's count has a private name (2.6 to 2.13) and no public one; None where it is
    missing, and for a tensor that has none."""
    try:
        return tensor._version
    except (AttributeError, RuntimeError):
        return None


def _changed(kept: _Kept, tensor: Tensor) -> bool:
    return tensor is not kept.tensor or kept.version is None or _version(tensor) != kept.version


def _alike(a: Tensor, b: Tensor) -> bool:
    return (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)


def _copy(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Copy the second of each pair into the first, in few kernels: those of one type and device go together."""
    groups: dict[tuple[torch.dtype, torch.device], list[tuple[Tensor, Tensor]]] = {}
    for to, source in pairs:
        groups.setdefault((to.dtype, to.device), []).append((to, source))
    for group in groups.values():
        foreach.copy([to for to, _ in group], [source for _, source in group])
