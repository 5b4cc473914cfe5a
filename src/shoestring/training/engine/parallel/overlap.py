"""The exchange of gradients while backward computes those that are not complete yet.

In the last microbatch of a process each gradient is final when backward has accumulated it. It is then added to the
sums of the process's earlier shards, and exchanged in messages, one after the other: the same additions in the same
order as after backward, so the bits are equal.

All processes exchange the same messages in the same order, whatever happens to them. The messages follow from an
earlier update of the same stage, in the order in which its backward computed the gradients. A process without one of
the gradients of a message adds -0. A process that fails completes the messages with any values: the others come to the
agreement after backward, learn there that the update has failed, and discard it. So nobody waits in a collective for
ever.

Gradients that no message contains are exchanged after that agreement, as all are in the first update of a stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import partial

import torch
from torch import Tensor

from shoestring.training.engine import foreach
from shoestring.training.engine.parallel.buckets import Buckets
from shoestring.training.engine.parallel.ranks import Ranks, ending_ranks_apart
from shoestring.training.engine.parallel.side_work import side_work
from shoestring.training.engine.parallel.tree import Sums, Tree, add_tensors

ABSENT, PRESENT, NOT_FINAL = 0.0, 0.5, math.inf
"""What a process reports of each gradient: that it has none; that it has one which its last backward did not compute;
that the gradient changed after backward had accumulated it. Any other number is the gradient's place in the order of
the last backward."""

_STAGES = 16
"""The stages whose messages are remembered; a recipe may have a new one in each update."""


class Overlap:
    """Exchanges the gradients of `parameters` during backward."""

    def __init__(self, parameters: Sequence[Tensor], buckets: Buckets, ranks: Ranks, device: torch.device) -> None:
        self._parameters, self._buckets, self._ranks = parameters, buckets, ranks
        self._is_possible = ranks.size > 1 and ranks.can_overlap and bool(parameters)
        self._side_work = side_work(device)
        self._reports_by_stage: dict[Hashable, list[tuple[float, float]]] = {}
        """The smallest and the largest report of each gradient in the last update of each stage."""
        self._messages_by_stage: dict[Hashable, list[list[int]]] = {}
        self._never_final = {
            index for index, parameter in enumerate(parameters) if parameter.device.type != device.type
        }
        """The gradients that have once changed after backward had accumulated them, and those in host memory: another
        thread computes them, and other collectives add them."""
        self._stage: Hashable = None
        self._is_watchable = False
        self._clear()
        if self._is_possible:
            for index, parameter in enumerate(parameters):
                parameter.register_post_accumulate_grad_hook(partial(self._on_gradient, index))

    def _clear(self) -> None:
        self._is_watching = False
        self._messages: list[list[int]] = []
        self._message_of: dict[int, int] = {}
        self._missing: list[int] = []
        """The number of gradients of each message that are not final yet."""
        self._next = 0
        """The number of the next message to start."""
        self._reports: list[float] = [ABSENT] * len(self._parameters)
        self._count = 0
        """The gradients that the last backward has accumulated."""
        self._versions: dict[int, int] = {}
        """How often torch had written to a gradient when backward had accumulated it, of those in no message."""
        self._gradients: dict[int, Tensor] = {}
        """The final gradients of messages that are not started."""
        self._totals: dict[int, Tensor] = {}
        """The gradients of the messages that are started."""
        self._tree: Tree[Sums] | None = None
        self._factor: Callable[[], float] = lambda: 1.0

    @property
    def is_active(self) -> bool:
        """Whether this update exchanges gradients during backward, which all processes know."""
        return bool(self._messages)

    @property
    def reports(self) -> list[float]:
        """What this process reports of each gradient after `complete`."""
        return self._reports

    def begin_update(self, stage: Hashable, *, is_eager: bool) -> None:
        """Begin an update of a stage of the run. In a backward that is not `is_eager`, but a graph, no hook runs."""
        self._clear()
        self._stage, self._is_watchable = stage, self._is_possible and is_eager
        if self._is_watchable:
            self._messages = self._messages_by_stage.get(stage, [])
            self._message_of = {index: number for number, message in enumerate(self._messages) for index in message}
            self._missing = [len(message) for message in self._messages]

    def watch(self, tree: Tree[Sums], factor: Callable[[], float]) -> None:
        """The next backward is the last one of this process. `factor` returns by what its gradients are multiplied,
        before they are added to the sums of earlier shards in the `tree`.
        """
        self._tree, self._factor, self._is_watching = tree, factor, self._is_watchable

    def complete(self, tree: Tree[Sums], factor: Callable[[], float]) -> None:
        """The last backward is complete: start the exchange of all messages that remain."""
        self._tree, self._factor, self._is_watching = tree, factor, False
        for index, parameter in enumerate(self._parameters):
            self._reports[index] = self._final_report(index, parameter)
            if index in self._message_of:
                self._take(index, parameter)
        while self._next < len(self._messages):
            self._start_next()
        self._tree = None

    def wait(self) -> None:
        """Let what follows wait for the exchange."""
        self._side_work.wait()

    def abandon(self) -> None:
        """Complete the messages that remain with any values, and drop all gradients. It needs no memory."""
        self._is_watching = False
        for message in self._messages[self._next :]:
            self._start(partial(self._buckets.add_any_values, [self._parameters[index] for index in message]))
        self.wait()
        self._clear()

    def drop(self) -> None:
        """Drop the gradients of the update."""
        self._clear()

    def merged(self, sums: Sums) -> Sums:
        """Return the sums of an update, the first of which are gradients, with those that were exchanged."""
        merged = list(sums)
        for index, total in self._totals.items():
            merged[index] = total
        return merged

    def is_exchanged(self, index: int) -> bool:
        """Return whether the gradient with this index was exchanged during backward."""
        return index in self._message_of

    def end_update(self, reports_by_rank: Sequence[Sequence[float]]) -> bool:
        """Choose the messages of the next update by the `reports` of all processes. Returns whether the gradients of
        those of this update were final.
        """
        reports = [(min(column), max(column)) for column in zip(*reports_by_rank, strict=True)]
        late = {index for index, (_, latest) in enumerate(reports) if latest == NOT_FINAL}
        self._never_final |= late
        if self._is_watchable and (late or self._reports_by_stage.get(self._stage) != reports):
            if len(self._reports_by_stage) > _STAGES:
                self._reports_by_stage.clear()
                self._messages_by_stage.clear()
            self._reports_by_stage[self._stage] = reports
            members = [
                index
                for index, (_, latest) in enumerate(reports)
                if latest != ABSENT and index not in self._never_final
            ]
            # A gradient that a backward did not compute comes last: the messages after it would wait for it.
            members.sort(key=lambda index: (reports[index][0] < 1, reports[index][1]))
            positions = self._buckets.messages([self._parameters[index] for index in members])
            self._messages_by_stage[self._stage] = [
                [members[position] for position in message] for message in positions
            ]
        return late.isdisjoint(self._message_of)

    def _on_gradient(self, index: int, parameter: Tensor) -> None:
        """Backward has accumulated the gradient of a parameter."""
        if not self._is_watching:
            return
        # A loss may call backward itself, before it is known by what gradients are multiplied, or clear a gradient.
        if self._reports[index] != ABSENT or parameter.grad is None or not self._factor():
            self._reports[index] = NOT_FINAL
            return
        self._count += 1
        self._reports[index] = float(self._count)
        number = self._message_of.get(index)
        if number is None:
            self._versions[index] = parameter.grad._version
            return
        self._take(index, parameter)
        self._missing[number] -= 1
        while self._next < len(self._messages) and not self._missing[self._next]:
            self._start_next()

    def _take(self, index: int, parameter: Tensor) -> None:
        """Take the gradient from its parameter: if there is another one at the end, this one was not final."""
        if parameter.grad is not None and index not in self._totals:
            self._gradients[index] = parameter.grad
        parameter.grad = None

    def _final_report(self, index: int, parameter: Tensor) -> float:
        """Return what to report of a gradient after the last backward."""
        report, gradient = self._reports[index], parameter.grad
        if report == ABSENT:
            assert self._tree is not None
            is_present = gradient is not None or any(sums[index] is not None for sums in self._tree.pending)
            return PRESENT if is_present else ABSENT
        if index in self._message_of:
            is_final = gradient is None
        else:
            is_final = gradient is not None and gradient._version == self._versions.get(index)
        return report if is_final else NOT_FINAL

    def _start_next(self) -> None:
        """Start the exchange of the next message."""
        assert self._tree is not None
        message = self._messages[self._next]
        terms: Sums = [self._gradients.pop(index, None) for index in message]
        gradients = [gradient for gradient in terms if gradient is not None]
        factor = self._factor()
        if factor != 1 and gradients:
            foreach.multiply(gradients, factor)
        for sums in self._tree.pending:
            terms = add_tensors([sums[index] for index in message], terms)
            for index in message:
                sums[index] = None
        tensors = [
            # -0 is the number that changes no other one by addition.
            torch.full_like(self._parameters[index], -0.0) if term is None else term
            for index, term in zip(message, terms, strict=True)
        ]
        self._totals.update(zip(message, tensors, strict=True))
        self._next += 1
        self._start(partial(self._buckets.add_message, tensors))

    def _start(self, exchange: Callable[[], None]) -> None:
        def act() -> None:
            with ending_ranks_apart(self._ranks):
                exchange()

        self._side_work.start(act)
