"""Each streamed block for all microbatches of a group, before the next block is copied.

The forward of each microbatch pauses at every streamed block until all microbatches have come there (`turns.py`). The
graph of autograd is cut at all blocks, streamed and resident ones: a block computes without storing what a backward
needs, and backward recomputes it from its inputs, as activation checkpointing does. So a group copies each streamed
block once for the forwards and once for the backwards.

The loss of a microbatch and the backward from there to its last block are computed in one turn, microbatch by
microbatch. Then backward goes through the blocks in the reverse order, and in each streamed one, with the resident ones
behind it, through all microbatches. Gradients are added to those of the parameters in the order of the microbatches.

These tensors are stored for all microbatches of a group at the same time:

- its batch, and what the Python code around the blocks refers to in the middle of a forward, such as masks, positions
  and the embeddings;
- the inputs of each block, streamed or resident, until its backward is over. The output of a block that is the input of
  the next one is one tensor;
- the graph of what is computed outside of blocks, except that of the loss;
- in backward, a gradient for each output of the block that is next, and for each input that several blocks share.

The activations of a block and those of the loss exist for one microbatch at a time. Blocks without frozen weights are
outside of blocks in this sense.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks

from shoestring.techniques import checkpointing, trees
from shoestring.techniques.streaming.stream import CURRENT_ORDER, Stream, StreamableBlock
from shoestring.techniques.streaming.turns import Suspendable

T = TypeVar("T")
Backward = Callable[[Tensor], None]
"""Begins the backward of a loss, or remembers the loss for it."""


class _Gradients:
    """The gradients that have reached a cut in the graph, one or None for each of its tensors."""

    def __init__(self) -> None:
        self.values: list[Tensor | None] = []

    def add(self, gradients: Sequence[Tensor | None]) -> None:
        """Add gradients of one backward. There are several, if not only the next block uses the output of a block."""
        if not self.values:
            self.values = list(gradients)
            return
        pairs = zip(self.values, gradients, strict=True)
        self.values = [new if old is None else old if new is None else old + new for old, new in pairs]


class _Cut(torch.autograd.Function):
    """Returns tensors of the same memory whose gradients are stored, and go no further."""

    @staticmethod
    def forward(ctx: Any, _: Tensor, gradients: _Gradients, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.gradients = gradients
        # Views would not be allowed to be changed in place.
        return tuple(tensor.data for tensor in tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, None, None]:
        ctx.gradients.add(gradients)
        return None, None, None


def _cut(tensors: Sequence[Tensor]) -> tuple[Sequence[Tensor], _Gradients]:
    gradients = _Gradients()
    if not tensors:
        return (), gradients
    return _Cut.apply(torch.empty(0, requires_grad=True), gradients, tensors), gradients  # type: ignore[no-untyped-call]


def _replaced(tree: Any, replacements: dict[int, Tensor]) -> Any:
    """Return nested values with other tensors, by the identity of those that they replace."""
    return trees.mapped(lambda leaf: replacements.get(id(leaf), leaf), tree)


@dataclass(kw_only=True)
class _Call:
    """The forward of a block for a microbatch, of which backward needs the inputs."""

    block: StreamableBlock
    forward: Callable[..., Any]
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    inputs: list[Tensor]
    """The arguments that require a gradient, each once."""
    first_used: list[Tensor]
    """Those of them that no earlier call of the microbatch has."""
    versions: list[int]
    outputs: list[int]
    """The positions of the outputs that require a gradient, among the leaves of all."""
    gradients: _Gradients
    autocast: Callable[[], ExitStack]


@dataclass(kw_only=True)
class _Microbatch:
    """What is stored of a microbatch between its turns."""

    loss: Tensor | None = None
    calls: dict[int, list[_Call]] = field(default_factory=dict)
    """The calls of blocks by round: first a streamed block, then resident ones."""
    pending: dict[int, Tensor] = field(default_factory=dict)
    """The gradients of inputs that earlier calls have too, by the identity of the input."""
    sequence: list[StreamableBlock] = field(default_factory=list)
    """The blocks that have been called, in their order."""
    used: set[int] = field(default_factory=set)
    """The identities of the inputs of all calls."""

    def begin_backward(self) -> None:
        """Run the backward of the loss, down to the last block."""
        loss, self.loss = self.loss, None
        if loss is not None:
            torch.autograd.backward(loss)

    def continue_backward(self, round_: int) -> None:
        """Run the backward of the calls of a round, and of what is between them and those before."""
        calls = self.calls.pop(round_)
        while calls:
            self._backward_to_call_before(calls.pop())

    def _backward_to_call_before(self, call: _Call) -> None:
        gradients = self._backward_of_block(call)
        for tensor, gradient in zip(call.inputs, gradients, strict=True):
            if gradient is not None:
                self.pending[id(tensor)] = gradient
        roots = [tensor for tensor in call.first_used if id(tensor) in self.pending]
        of_roots = [self.pending.pop(id(tensor)) for tensor in roots]
        del call, gradients
        if roots:
            torch.autograd.backward(roots, of_roots)

    def _backward_of_block(self, call: _Call) -> list[Tensor | None]:
        """Run the backward of a block, and return the gradients of its inputs, with those of later calls."""
        pending = [self.pending.pop(id(tensor), None) for tensor in call.inputs]
        if not any(gradient is not None for gradient in call.gradients.values):
            return pending
        if [tensor._version for tensor in call.inputs] != call.versions:
            raise RuntimeError("an input of a block was modified by an in-place operation after its forward")
        inputs, gradients = _cut(call.inputs)
        replacements = {id(tensor): cut for tensor, cut in zip(call.inputs, inputs, strict=True)}
        with call.autocast(), checkpointing.preserve_running_statistics(call.block.block):
            args, kwargs = _replaced(call.arguments, replacements)
            leaves = trees.leaves(call.block.compute(call.forward, args, kwargs, "backward"))
        pairs = [
            (tensor, gradient)
            for tensor, gradient in (
                *zip((leaves[position] for position in call.outputs), call.gradients.values, strict=True),
                # The gradients of later blocks come first in the sum, as in a backward of the whole graph.
                *zip(inputs, pending, strict=True),
            )
            if gradient is not None and tensor.requires_grad
        ]
        del leaves, args, kwargs
        torch.autograd.backward([tensor for tensor, _ in pairs], [gradient for _, gradient in pairs])
        return gradients.values or [None] * len(call.inputs)


class BlockOrder:
    """The forwards and backwards of a group of microbatches of one update."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._microbatches: list[_Microbatch] = []
        self._turns: list[Suspendable[Any]] = []
        self._current = self._round = self._last = 0
        self.is_regular = True
        """Whether all microbatches have called the same blocks in the same order, each once. Otherwise gradients are
        added in another order than usual, so that they are rounded differently."""

    def run(self, works: Iterable[Callable[[Backward], T]]) -> list[T]:
        """Return the results of `works`, each of which computes the loss of a microbatch and calls what it is given to
        begin its backward, as its last step.

        The gradients are added to those of the parameters. After an error or an interruption nothing runs any more, and
        nothing is stored.
        """
        works = [*works]
        self._microbatches = [_Microbatch() for _ in works]
        around = partial(self._around_turn, _same_device(self._stream.slots[0].buffer.device))
        self._turns = [
            Suspendable(lambda work=work, own=own: work(lambda loss: setattr(own, "loss", loss)), around)  # type: ignore[misc]
            for work, own in zip(works, self._microbatches, strict=True)
        ]
        results: list[T] = []
        try:
            self._run_forwards(results)
            first, *further = (microbatch.sequence for microbatch in self._microbatches)
            self.is_regular = len(set(first)) == len(first) and all(sequence == first for sequence in further)
            self._run_backwards()
        finally:
            turns, self._turns, self._microbatches = self._turns, [], []
            for turn in turns:
                turn.close()
        return results

    @contextmanager
    def _around_turn(self, same_device: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
        CURRENT_ORDER.set(self)  # of this thread alone, whose context is a copy
        with same_device():
            yield

    def _run_forwards(self, results: list[T]) -> None:
        running = list(range(len(self._turns)))
        self._round = -1  # until the first streamed block, nothing is computed by one
        while running:
            self._last = running[-1]
            for number in running:
                self._current = number
                torch.clear_autocast_cache()  # which is one for all threads
                self._free_workspaces()
                self._turns[number].resume()
                self._free_workspaces()
                if self._turns[number].is_over:
                    results.append(self._turns[number].take_result())
                    self._microbatches[number].begin_backward()
            running = [number for number in running if not self._turns[number].is_over]
            self._round += 1

    def _free_workspaces(self) -> None:
        """Free the memory in which cuBLAS computes, of which each thread has its own from its first use on."""
        if self._stream.slots[0].buffer.is_cuda:
            torch._C._cuda_clearCublasWorkspaces()

    def _run_backwards(self) -> None:
        for round_ in range(self._round, -2, -1):
            streamed: int | None = None
            for microbatch in self._microbatches:
                if calls := microbatch.calls.get(round_):
                    streamed = calls[0].block.number if calls[0].block.stream else streamed
                    microbatch.continue_backward(round_)
            if streamed is not None:
                self._stream.end(streamed, "backward")

    def call(self, block: StreamableBlock, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return the outputs of a block for the current microbatch; of a streamed one, when all microbatches have come
        to their next streamed block.
        """
        number = self._current
        if block.stream:
            self._turns[number].pause()
        if torch.is_grad_enabled():
            outputs = self._call_with_gradient(self._microbatches[number], block, forward, args, kwargs)
        else:
            outputs = block.compute(forward, args, kwargs, "inference")
        if block.stream and number == self._last:
            self._stream.end(block.number, "forward")
        return outputs

    def _call_with_gradient(
        self, microbatch: _Microbatch, block: StreamableBlock, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        tensors = [leaf for leaf in trees.leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        inputs = list({id(tensor): tensor for tensor in tensors if tensor.requires_grad}.values())
        autocast = _autocast_state(self._stream.slots[0].buffer.device)
        with _discarding():
            outputs = block.compute(forward, args, kwargs, "forward")
        own = {id(tensor) for tensor in tensors}  # an input that is returned keeps its own gradient
        leaves = trees.leaves(outputs)
        positions = [
            position
            for position, leaf in enumerate(leaves)
            if isinstance(leaf, Tensor) and leaf.requires_grad and id(leaf) not in own
        ]
        if not positions:
            return outputs
        cut, gradients = _cut([leaves[position] for position in positions])
        call = _Call(
            block=block,
            forward=forward,
            arguments=(args, kwargs),
            inputs=inputs,
            first_used=[tensor for tensor in inputs if id(tensor) not in microbatch.used],
            versions=[tensor._version for tensor in inputs],
            outputs=positions,
            gradients=gradients,
            autocast=autocast,
        )
        microbatch.sequence.append(block)
        microbatch.calls.setdefault(self._round, []).append(call)
        microbatch.used.update(map(id, inputs))
        replacements = {id(leaves[position]): tensor for position, tensor in zip(positions, cut, strict=True)}
        return _replaced(outputs, replacements)


def _same_device(device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Return what makes the context in which another thread computes on the device and in the stream of this one."""
    if device.type != "cuda":
        return ExitStack
    stream = torch.cuda.current_stream(device)
    return lambda: torch.cuda.stream(stream)


def _autocast_state(device: torch.device) -> Callable[[], ExitStack]:
    """Return what makes the context of the automatic mixed precision that this thread has now."""
    devices = {"cpu", device.type}
    states = [
        (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device), torch.is_autocast_cache_enabled())
        for device in sorted(devices)
    ]

    def context() -> ExitStack:
        stack = ExitStack()
        for device, dtype, enabled, cache_enabled in states:
            stack.enter_context(torch.autocast(device, dtype, enabled=enabled, cache_enabled=cache_enabled))
        return stack

    return context


def _discarding() -> saved_tensors_hooks:
    """Return the context in which autograd saves no tensors, for a graph that no backward uses.

    Without a graph other kernels may be chosen than where the block is recomputed with one.
    """
    return saved_tensors_hooks(lambda _: None, _fail)


def _fail(_: None) -> Tensor:
    raise RuntimeError("the loss uses a value from the inside of a block, which is recomputed later")
