"""Whether the microbatches of an update take turns at each streamed block, and what is compared before they may.

All of them do, or those of each group, one group after the other. The first update of a session is computed in both
orders, and the bits of its loss, gradients and buffers are compared. In all updates it is noticed if the loss draws
random numbers, of which a microbatch would get those of another one, or if microbatches use different blocks, which
changes the order of sums. In later ones it is noticed too if a module of the model is given a value in an attribute, or
if a buffer changes, because another microbatch may have replaced the value before it is read. Then the update is
repeated in the usual order, in which all updates of the session follow.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.techniques import norms
from shoestring.techniques.slots import buffers
from shoestring.techniques.streaming.block_order import BlockOrder
from shoestring.techniques.streaming.stream import Stream
from shoestring.training.checkpoint.checksums import checksums
from shoestring.training.data.own_generators import OwnGenerators
from shoestring.training.engine.memory import error_message, out_of_memory
from shoestring.training.engine.side_effects import Generators
from shoestring.training.engine.update import Microbatch, OrderedWork, RunAll


class CheckedBlockOrder:
    """Decides the order of each update of a session."""

    def __init__(
        self,
        model: nn.Module,
        stream: Callable[[], Stream | None],
        note: Callable[[str], None],
        group: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`stream` returns the stream of the model's streamed blocks, of which there may be more after out-of-memory.

        `note` is called with the reason if the usual order is used from then on. `group` returns the number of
        microbatches that take turns, which may be smaller after out-of-memory: 1 is the usual order, None all of them.
        """
        self._model, self._stream, self._note, self._group = model, stream, note, group
        self.sharing = 0
        """The number of microbatches of the largest group of the latest attempt, as far as they were loaded."""
        self._is_on, self._is_compared = True, False
        self._own: OwnGenerators | None = None
        self._takes_turns = False
        """Whether microbatches take turns now, or an error has ended their turns."""
        self._has_taken_turns = False
        self._reason = ""
        """Why the gradients of the attempt cannot be used."""
        self._bits: list[Any] | None = None
        """Those of an update in which the microbatches took turns, to be compared with the usual order."""
        self._expected: list[Any] | None = None

    def begin(self, own: OwnGenerators) -> RunAll | None:
        """Begin an attempt at an update, and return what runs its microbatches; None if one runs after the other.

        `own` are the generators that the loss and the model hold.
        """
        self._own, self._takes_turns, self._has_taken_turns, self._reason, self.sharing = own, False, False, "", 0
        # An attempt that runs out of memory is not compared: the next one may have other microbatches.
        self._expected, self._bits = self._bits, None
        is_on = self._is_on and self._group() != 1 and self._expected is None
        return self._run if is_on and self._stream() is not None else None

    def excuses(self, error: Exception) -> bool:
        """Return whether the update has to be made again because of an error that the usual order may not have."""
        if not self._takes_turns or self._is_compared or out_of_memory(error):
            return False
        # An error that occurs only once is told nowhere else.
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error_message(error)} ({Path(place.filename).name}, line {place.lineno})"
        self._turn_off(f"with it an update fails: {text}")
        return True

    def accepts(self, total: Microbatch) -> bool:
        """Return whether the gradients may be used; otherwise the update has to be made again."""
        if self._expected is not None:
            self._compare(total, self._expected)
            return True
        if not self._has_taken_turns:
            return True
        if self._reason:
            self._turn_off(self._reason)
            return False
        if not self._is_compared:
            self._bits = self._bits_of(total)
        return self._is_compared

    def _turn_off(self, reason: str) -> None:
        self._is_on = False
        self._note(
            f"stream_order=block is not used in this session, because {reason}. Each microbatch copies all streamed "
            "blocks instead, which takes longer where copies are slow"
        )

    def _run(self, works: Iterable[OrderedWork]) -> list[Microbatch]:
        versions, stored = self._versions(), list[str]()
        further, results = iter(works), list[Microbatch]()
        with _watching_attributes(self._model, stored):
            # No variable refers to the batches of a group while the next one is loaded.
            while of_group := self._run_group(self._load_group(further)):
                results += of_group
        if self._is_compared and self._has_taken_turns and not self._reason:
            if stored:
                self._reason = f"the model stores values of a microbatch in {stored[0]}"
            elif changed := self._changed_buffer(versions):
                self._reason = f"the model changes its buffer {changed} in a forward"
        return results

    def _load_group(self, further: Iterator[OrderedWork]) -> list[OrderedWork]:
        group: list[OrderedWork] = []
        for work in islice(further, self._group()):
            group.append(work)
            self.sharing = max(self.sharing, len(group))
        return group

    def _run_group(self, group: Sequence[OrderedWork]) -> list[Microbatch]:
        if len(group) < 2:
            return [work(torch.autograd.backward) for work in group]
        stream = self._stream()
        assert stream is not None and self._own is not None
        self._takes_turns = self._has_taken_turns = True
        generators, own_states = Generators(stream.slots[0].buffer.device), self._own.states()
        order = BlockOrder(stream)
        results = order.run(group)
        self._takes_turns = False
        if not (generators.unchanged() and self._own.unchanged(own_states)):
            self._reason = "the loss draws random numbers, which the microbatches would draw in another order"
        elif not order.is_regular:
            self._reason = "not all microbatches of an update use the same blocks once, in the same order"
        return results

    def _versions(self) -> dict[str, tuple[int, int]]:
        """Return numbers that change if a buffer does. Running statistics are changed in the order of microbatches."""
        return {
            f"{path}.{name}".lstrip("."): (id(buffer), buffer._version)
            for path, module in self._model.named_modules()
            if not isinstance(module, norms.RUNNING)
            for name, buffer in buffers(module).items()
            if buffer is not None and not buffer.is_inference()
        }

    def _changed_buffer(self, before: dict[str, tuple[int, int]]) -> str:
        return next((name for name, version in self._versions().items() if before.get(name) != version), "")

    def _compare(self, total: Microbatch, expected: list[Any]) -> None:
        bits = self._bits_of(total)
        # Gradients that overflow are equal whatever they are computed from.
        if bits == expected:
            self._is_compared = all(bool(torch.isfinite(tensor).all()) for tensor in self._results(total))
        else:
            self._turn_off(
                "with it an update has other bits: the model or the loss stores values of a microbatch, uses a weight "
                "in several places, or cannot be repeated"
            )

    def _results(self, total: Microbatch) -> list[Tensor]:
        gradients = (parameter.grad for parameter in self._model.parameters())
        return [total.loss_sum, *(gradient for gradient in gradients if gradient is not None)]

    def _bits_of(self, total: Microbatch) -> list[Any]:
        present = [parameter.grad is not None for parameter in self._model.parameters()]
        values = [*self._results(total), *self._model.buffers()]
        return [present, float(total.weight), float(total.expected), *checksums(values)]


@contextmanager
def _watching_attributes(model: nn.Module, stored: list[str]) -> Iterator[None]:
    """Add the name of each attribute of a module of the model that is set within the context."""
    paths = {id(module): path for path, module in model.named_modules()}
    original = nn.Module.__setattr__

    def set_watched(module: nn.Module, name: str, value: Any) -> None:
        if id(module) in paths:
            stored.append(f"{paths[id(module)]}.{name}".lstrip("."))
        original(module, name, value)

    nn.Module.__setattr__ = set_watched  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        nn.Module.__setattr__ = original  # type: ignore[method-assign]
