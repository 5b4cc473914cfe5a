"""The calls of a group of identical blocks: which of them run, and what is recorded for the others.

Most storages of a folded block have no tensors in this process. Its output, the gradient of its input, those of its
parameters and the casts of its weights in autocast's cache do; autograd sees the block as one function.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from shoestring.planning.trace import autocast, identical, templates
from shoestring.planning.trace.block_backward import Backward
from shoestring.planning.trace.block_state import PLAIN, Arguments, Call, Output, Pass
from shoestring.planning.trace.event_log import EventLog, Position
from shoestring.planning.trace.record import Part
from shoestring.planning.trace.simulated_device import DEVICE
from shoestring.planning.trace.templates import NotRepeatableError, Released
from shoestring.techniques import trees


class Group:
    """Identical blocks, in the order in which the model calls them."""

    def __init__(self, log: EventLog, blocks: list[nn.Module]) -> None:
        self.blocks = blocks
        self.folded_calls = 0
        self._log = log
        self._parameters = [list(block.parameters()) for block in blocks]
        self._backward = Backward(log, self._parameters)
        self._microbatches: deque[list[Pass]] = deque()
        """The passes of each microbatch whose backward has not ended, the current one last."""

    def begin_microbatch(self) -> None:
        """Let the calls that follow be those of another microbatch."""
        self._microbatches.append([])

    def call(self, index: int, args: Any, kwargs: Any, run: Callable[[], Any]) -> Any:
        """Run or fold the block with this index."""
        passes = self._microbatches[-1]
        if index == 0 and (not passes or len(passes[-1].calls) == len(self.blocks)):
            passes.append(Pass(passes))
        current = passes[-1] if passes else None
        if current is None or len(current.calls) != index:
            raise NotRepeatableError("blocks are called in another order")
        if not current.can_fold:
            return self._run(current, run)
        arguments = Arguments.read(args, kwargs)
        if index == 0:
            current.arguments = arguments
            return self._run(current, run)
        if index == 1:
            return self._run_second(current, arguments, run)
        if not self._can_repeat(current, index, arguments):
            if index > 2:
                raise NotRepeatableError("a block is called with other arguments")
            current.can_fold = False
            return self._run(current, run)
        if index == len(self.blocks) - 1:
            return self._run_last(current, arguments, run)
        return self._fold(current, index, arguments)

    def end_microbatch(self) -> None:
        """Forget the earliest microbatch, whose backward has ended.

        Raises NotRepeatableError unless every pass of it has ended as it does when all blocks run.
        """
        passes = self._microbatches.popleft()
        if self._backward.problem is not None:
            raise self._backward.problem
        for current in passes:
            if not any(call.is_folded for call in current.calls):
                continue
            if len(current.calls) < len(self.blocks) or not all(call.is_complete for call in current.calls):
                raise NotRepeatableError("a block was not called, or has no backward")
            if any(self._parts(current, call) != self._parts(current, current.calls[1]) for call in current.calls[2:]):
                raise NotRepeatableError("storages of a block have other parts")

    def _parts(self, current: Pass, call: Call) -> list[Part | None]:
        """Return the parts of the storages of a block's forward, without its result: that has a tensor in each case."""
        assert current.output is not None
        parts = self._log.parts(call.storages.start, call.storages.stop)
        return [part for offset, part in enumerate(parts) if offset != current.output.offset]

    def _run(self, current: Pass, run: Callable[[], Any]) -> Any:
        start = self._log.position().storages
        result = run()
        current.calls.append(Call(len(current.calls), self._storages_since(start), is_complete=True))
        return result

    def _run_second(self, current: Pass, arguments: Arguments, run: Callable[[], Any]) -> Any:
        """Run the second block and make its template, if the others can be expected to have the same events."""
        assert current.arguments is not None
        differing = arguments.differing(current.arguments) or []
        source = arguments.tensor(differing[0]) if len(differing) == 1 else None
        if source is None or not arguments.are_supported(differing[0]):
            current.can_fold = False
            return self._run(current, run)
        current.arguments, current.input_place = arguments, differing[0]
        current.input_form = templates.form(source), source.requires_grad
        current.state = self._state(1)
        attributes = identical.plain_attributes(self.blocks[1])
        versions = [buffer._version for buffer in self.blocks[1].buffers()]
        start = self._log.position()
        result = run()
        current.written_buffers = [
            buffer._version != version for buffer, version in zip(self.blocks[1].buffers(), versions, strict=True)
        ]
        call = Call(1, self._storages_since(start.storages), self._log.storage_index(source))
        current.calls.append(call)
        try:
            if attributes != identical.plain_attributes(self.blocks[1]):
                raise NotRepeatableError("a block changes its attributes")
            current.forward = templates.make(self._log, start, {})
            current.output = self._output(result, source, start)
            current.casts = self._new_casts(1, start)
            bound_offsets = {current.output.offset, *(offset for _, offset, _ in current.casts)}
            if not current.output.requires_grad and current.forward.survivors - bound_offsets:
                raise NotRepeatableError("a block without backward does not free its storages")
        except NotRepeatableError:
            current.can_fold, call.is_complete = False, True
            return result
        current.second_input = weakref.ref(source.untyped_storage())
        self._backward.watch(current, call, source, result)
        return result

    def _run_last(self, current: Pass, arguments: Arguments, run: Callable[[], Any]) -> Any:
        """Run the last block, whose forward must have the events of the second one's."""
        source = arguments.tensor(current.input_place)
        assert source is not None
        start = self._log.position()
        result = run()
        call = Call(len(self.blocks) - 1, self._storages_since(start.storages), self._log.storage_index(source))
        current.calls.append(call)
        casts = [(parameter, offset) for parameter, offset, _ in self._new_casts(call.index, start)]
        if (
            templates.make(self._log, start, {}) != current.forward
            or self._output(result, source, start) != current.output
            or casts != [(parameter, offset) for parameter, offset, _ in current.casts]
        ):
            raise NotRepeatableError("the forward of the last block has other events")
        self._backward.watch(current, call, source, result)
        return result

    def _fold(self, current: Pass, index: int, arguments: Arguments) -> Any:
        """Record the events of the second block's forward for another one, and return the result of that."""
        forward, output, source = current.forward, current.output, arguments.tensor(current.input_place)
        assert forward is not None and output is not None and isinstance(source, FakeTensor)
        second = current.calls[1].storages
        parts = self._log.parts(second.start, second.stop)
        first = templates.repeat(self._log, forward, parts, _refuse)
        for parameter, offset, get_cast in current.casts:
            cast = get_cast()
            if cast is None:
                raise NotRepeatableError("the cast of a weight was removed from the cache")
            copy = templates.new_tensor(templates.form(cast), source)
            self._log.bind(copy, first + offset, copied=cast)
            autocast.cached_casts[id(self._parameters[index][parameter])] = copy
        result = templates.new_tensor(output.form, source)
        self._log.bind(result, first + output.offset)
        for buffer, is_written in zip(self.blocks[index].buffers(), current.written_buffers, strict=True):
            if is_written:  # the engine copies the buffers that a forward has changed
                torch.autograd.graph.increment_version(buffer)
        call = Call(index, range(first, first + len(forward.sizes)), is_folded=True)
        current.calls.append(call)
        self.folded_calls += 1
        if output.requires_grad:
            # What blocks save for backward remains allocated; otherwise the caller frees it.
            call.input = source if current.second_input() is not None else None
            results = [result]
            del result
            result = self._backward.fold(current, call, source, results)
        else:
            call.is_complete = True
        return output.with_tensor(result)

    def _can_repeat(self, current: Pass, index: int, arguments: Arguments) -> bool:
        """Return whether a block is called as the second one was."""
        assert current.arguments is not None
        source = arguments.tensor(current.input_place) if current.arguments.structure == arguments.structure else None
        return (
            source is not None
            and arguments.differing(current.arguments) == [current.input_place]
            and (templates.form(source), source.requires_grad) == current.input_form
            and self._state(index) == current.state
        )

    def _state(self, index: int) -> Any:
        casts = [id(parameter) in autocast.cached_casts for parameter in self._parameters[index]]
        modes = torch.is_grad_enabled(), torch.is_autocast_enabled(DEVICE), torch.get_autocast_dtype(DEVICE)
        return modes, casts, identical.state(self.blocks[index])

    def _storages_since(self, start: int) -> range:
        return range(start, self._log.position().storages)

    def _output(self, result: Any, source: Tensor, start: Position) -> Output:
        """Return the form of a block's result. Raises NotRepeatableError unless that is one new tensor."""
        leaves, structure = trees.flatten(result)
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        values = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
        index = self._log.storage_index(leaves[places[0]]) if len(places) == 1 else None
        if index is None or index < start.storages or not all(isinstance(leaf, PLAIN) for leaf in values):
            raise NotRepeatableError("the result of a block is not one new tensor")
        tensor = leaves[places[0]]
        if tensor.requires_grad and not source.requires_grad:
            raise NotRepeatableError("the input of a block needs no gradient")
        offset = index - start.storages
        return Output(structure, values, places[0], offset, templates.form(tensor), tensor.requires_grad)

    def _new_casts(self, index: int, start: Position) -> list[tuple[int, int, Any]]:
        numbers = {id(parameter): number for number, parameter in enumerate(self._parameters[index])}
        casts = []
        for key, cast in autocast.cached_casts.items():
            storage = self._log.storage_index(cast) if key in numbers else None
            if storage is not None and storage >= start.storages:
                casts.append((numbers[key], storage - start.storages, weakref.ref(cast)))
        return casts


def _refuse(step: Released) -> None:
    raise NotRepeatableError(f"a storage of another module is freed: {step.role}")
