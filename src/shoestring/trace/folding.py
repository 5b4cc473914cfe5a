"""Folding: of a group of identical blocks only three run; their events are recorded again for the others.

A trace takes its time in Python, for each operator, and the blocks of a language model are identical. The first two and
the last block of a group run. The events of the second one's forward are repeated for the following blocks, with new
storages; in backward, which runs in reverse, those of the last one. The record is exactly that of running all blocks:
the last block's forward and the second one's backward run after the folded blocks, and must have the same events.
Whatever else could make a difference raises NotRepeatableError; the model is then traced without folding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from shoestring.trace import identical
from shoestring.trace.block_calls import Group
from shoestring.trace.recorder import Recorder
from shoestring.trace.templates import NotRepeatableError

__all__ = ["Folding", "NotRepeatableError"]

_LEAST_BLOCKS = 4


class Folding:
    """Folds identical `blocks` of the model in the microbatches that run in the context `microbatch`."""

    def __init__(self, recorder: Recorder, model: nn.Module, blocks: Sequence[nn.Module]) -> None:
        self._recorder = recorder
        self._groups = [Group(recorder, blocks) for blocks in identical.groups(model, blocks, _LEAST_BLOCKS)]
        self._kinds: list[tuple[nn.Module, type[nn.Module]]] = []
        self._is_active = False

    @property
    def count(self) -> int:
        """The number of calls of blocks that were folded."""
        return sum(group.folded_calls for group in self._groups)

    @contextmanager
    def microbatch(self) -> Iterator[None]:
        """Fold blocks that are called in the context. Raises NotRepeatableError."""
        for group in self._groups:
            group.passes.clear()
        self._is_active = True
        try:
            yield
        finally:
            self._is_active = False
        for group in self._groups:
            group.check_complete()
        if self._recorder.untracked:
            raise NotRepeatableError("storages of a block remain allocated")

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Redirect the calls of the blocks in the context.

        Raises NotRepeatableError for any exception, once a block was folded: without folding there may be none.
        """
        for group in self._groups:
            for index, block in enumerate(group.blocks):
                self._kinds.append((block, type(block)))
                # `__call__` instead of `forward`: some layers implement checkpointing there.
                _set_class(block, self._redirected(group, index, type(block)))
        try:
            yield
        except Exception as error:
            if self.count:
                raise NotRepeatableError(str(error)) from error
            raise
        finally:
            while self._kinds:
                _set_class(*self._kinds.pop())

    def _redirected(self, group: Group, index: int, kind: type[nn.Module]) -> type[nn.Module]:
        """Return a class of blocks whose calls are decided by the group."""

        def call(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
            call_block: Any = kind.__call__
            if not self._is_active:
                return call_block(block, *args, **kwargs)
            return group.call(index, args, kwargs, lambda: call_block(block, *args, **kwargs))

        attributes = {"__call__": call, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
        return type(kind.__name__, (kind,), attributes)


def _set_class(block: nn.Module, kind: type[nn.Module]) -> None:
    try:
        block.__class__ = kind
    except TypeError as error:
        raise NotRepeatableError(f"calls of {kind.__name__} cannot be redirected") from error
