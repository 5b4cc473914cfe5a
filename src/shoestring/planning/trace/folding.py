"""Folding: of a group of identical blocks only three run; their events are recorded again for the others.

A trace takes its time in Python, for each operator, and the blocks of a language model are identical. The first two and
the last block of a group run. The events of the second one's forward are repeated for the following blocks, with new
storages; in backward, which runs in reverse, those of the last one. The record is exactly that of running all blocks:
the last block's forward and the second one's backward run after the folded blocks, and must have the same events. If
the model is divided between two devices, each has groups of its own, and the backward of a microbatch runs within the
forward of the next one or after it. The time steps of a scan are folded in the same way (`time_steps.py`). Whatever
else could make a difference raises NotRepeatableError; the model is then traced without folding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import nn

from shoestring.planning.trace import identical, redirected
from shoestring.planning.trace.block_calls import Group
from shoestring.planning.trace.event_log import EventLog
from shoestring.planning.trace.templates import NotRepeatableError
from shoestring.planning.trace.time_steps import Scans

__all__ = ["Folding", "NotRepeatableError"]

_LEAST_BLOCKS = 4


class Folding:
    """Folds identical `blocks` of the model, and scans, in the microbatches that run in the context `microbatch`.

    Without `blocks`, None, nothing is folded; no scans are in a model that is divided between two devices.
    """

    def __init__(self, log: EventLog, model: nn.Module, blocks: Sequence[nn.Module] | None) -> None:
        self._log = log
        self._microbatches = 0
        """The number of microbatches whose backward has not ended."""
        self._groups = [Group(log, blocks) for blocks in identical.groups(model, blocks or (), _LEAST_BLOCKS)]
        self.scans = None if blocks is None or log.divides else Scans(log)
        self._is_active = False

    @property
    def count(self) -> int:
        """The number of calls of blocks that were folded."""
        return sum(group.folded_calls for group in self._groups)

    @property
    def _has_folded(self) -> bool:
        return self.count > 0 or (self.scans is not None and self.scans.count > 0)

    @contextmanager
    def microbatch(self) -> Iterator[None]:
        """Fold blocks that are called in the context; `end_microbatch` has to follow the backward.

        Raises NotRepeatableError.
        """
        for group in self._groups:
            group.begin_microbatch()
        self._microbatches += 1
        self._is_active = True
        try:
            with self.scans.microbatch() if self.scans else nullcontext():
                yield
        finally:
            self._is_active = False

    def end_microbatch(self) -> None:
        """End the earliest microbatch, whose backward is complete.

        Raises NotRepeatableError if its record may differ from that of running all blocks.
        """
        for group in self._groups:
            group.end_microbatch()
        self._microbatches -= 1
        if not self._microbatches and self._log.untracked:
            raise NotRepeatableError("storages of a block remain allocated")

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Redirect the calls of the blocks in the context.

        Raises NotRepeatableError for any exception, once a block was folded: without folding there may be none.
        """
        kinds = [(block, type(block)) for group in self._groups for block in group.blocks]
        for group in self._groups:
            for index, block in enumerate(group.blocks):
                self._redirect(group, index, block)
        try:
            with self.scans.attached() if self.scans else nullcontext():
                yield
        except Exception as error:
            if self._has_folded:
                raise NotRepeatableError(str(error)) from error
            raise
        finally:
            for block, kind in kinds:
                block.__class__ = kind

    def _redirect(self, group: Group, index: int, block: nn.Module) -> None:
        """Let the group decide the calls of its block."""

        def call(run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            if not self._is_active:
                return run(*args, **kwargs)
            return group.call(index, args, kwargs, lambda: run(*args, **kwargs))

        try:
            redirected.redirect(block, call)
        except TypeError as error:
            raise NotRepeatableError(f"calls of {type(block).__name__} cannot be redirected") from error
