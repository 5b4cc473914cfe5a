"""What happens before and after the forward and the backward of a streamed block.

Before a block's forward its weights are copied to its slot, unless they are there, and its modules are given the
tensors in the slot. What autograd saves of these for backward is remembered as a place in the slot. Another block has
the slot by then, so the weights are copied again before the first operator of the block's backward runs. Blocks need
not be recomputed for this, and may be.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, saved_tensors_hooks

from shoestring.techniques import checkpointing, trees
from shoestring.techniques.streaming import host_memory
from shoestring.techniques.streaming.host_weights import HostWeights
from shoestring.techniques.streaming.schedule import Pass, SlotContents
from shoestring.techniques.streaming.slots import Slot
from shoestring.techniques.streaming.tensors import Streamed, parts, set_parts, with_parts


class Stream:
    """The streamed blocks of a model."""

    def __init__(
        self,
        weights: Sequence[HostWeights],
        slots: Sequence[Slot],
        allocate: Callable[[int], Tensor] = host_memory.allocate,
    ) -> None:
        """Stream blocks with these `weights`, in the order in which they run, through the `slots`.

        `allocate` returns memory for the weights of blocks that are streamed later.
        """
        self.weights, self.slots, self.allocate = list(weights), list(slots), allocate
        self.contents = SlotContents(len(self.weights), len(self.slots))
        self.copies = 0
        """The number of copies so far."""
        self.trains = True
        """Whether backward followed the latest forward of a block that computed gradients, and so may the next one."""
        self._in_backward: int | None = None
        """The block whose backward runs."""

    def slot(self, number: int) -> Slot:
        return self.slots[number % len(self.contents.blocks)]

    def begin(self, number: int, pass_: Pass) -> None:
        """Let the device compute with the weights of a block from now on, and copy those of the next ones."""
        self._in_backward = number if pass_ == "backward" else None
        if self.weights[number].refresh():
            self.contents.remove(number)
        self._copy(self.contents.begin(number, pass_))
        self.slot(number).wait()

    def end(self, number: int, pass_: Pass) -> None:
        """Copy weights into the slot of a block whose use is over."""
        self._copy(self.contents.end(number, pass_))

    def end_backward(self, number: int) -> None:
        """End the backward of a block, unless another one runs already."""
        if self._in_backward == number:
            self._in_backward = None
            self.end(number, "backward")

    def _copy(self, numbers: list[int]) -> None:
        for index, number in enumerate(numbers):
            try:
                self.weights[number].refresh()
                self.slot(number).fill(self.weights[number].buffer)
            except BaseException:
                for missing in numbers[index:]:
                    self.contents.remove(missing)
                raise
            self.copies += 1


class Order(Protocol):
    """Another order of the calls of blocks than that of the code that calls them."""

    def call(self, block: StreamableBlock, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return the outputs of a block, whose own `forward` may be called later."""


CURRENT_ORDER: ContextVar[Order | None] = ContextVar("CURRENT_ORDER", default=None)
"""The order in which the blocks run that the code of a thread calls; None: the usual one."""


class StreamableBlock:
    """A block that runs with the weights in its slot, once it is streamed."""

    def __init__(self, block: nn.Module) -> None:
        self.block = block
        self.stream: Stream | None = None
        """None as long as all of the block stays on the device."""

    def attach(self, stream: Stream, number: int) -> None:
        """Run with the weights that `stream` has for the block with this number from now on."""
        self.stream, self.number = stream, number
        self._weights, self._buffer = stream.weights[number], stream.slot(number).buffer
        self._storage = self._buffer.untyped_storage()._cdata
        views = self._weights.layout.views(self._buffer)
        self._in_slot = [
            (streamed, with_parts(streamed.value, own)) for streamed, own in self._weights.by_tensor(views)
        ]
        self._recurrent = [module for module in self.block.modules() if isinstance(module, nn.RNNBase)]

    def run(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what `forward` returns, which is the block's own."""
        stream, order = self.stream, CURRENT_ORDER.get()
        if order is not None and not is_in_backward():
            return order.call(self, forward, args, kwargs)
        if stream is None or is_in_backward():
            return self.compute(forward, args, kwargs, "backward")
        number = self.number
        pass_: Pass = "forward" if torch.is_grad_enabled() and stream.trains else "inference"
        outputs = self.compute(forward, args, kwargs, pass_)
        is_trained = self._follow_backward(stream, (args, kwargs), outputs)
        if torch.is_grad_enabled():
            stream.trains = is_trained
        stream.end(number, "forward" if is_trained else "inference")
        return outputs

    def compute(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], pass_: Pass) -> Any:
        """Return what `forward` returns, of a streamed block with the weights in the slot."""
        stream = self.stream
        if stream is None:
            return forward(*args, **kwargs)
        stream.begin(self.number, pass_)
        with self._installed(), self._saved_as_places(stream):
            return forward(*args, **kwargs)

    def _follow_backward(self, stream: Stream, inputs: Any, outputs: Any) -> bool:
        """Have the weights in the slot whenever the block's backward runs; return whether there may be one.

        Autograd runs the operators of a thread in the reverse order of their forward, so the block's backward begins
        with the operator of an output and is over before that of an input.
        """
        before, after = _nodes(inputs), _nodes(outputs)
        number = self.number
        for node in after - before:  # an input that is returned belongs to another block
            node.register_prehook(lambda _: stream.begin(number, "backward"))
        if after - before:
            for node in before:
                node.register_prehook(lambda _: stream.end_backward(number))
        return bool(after - before)

    @contextmanager
    def _installed(self) -> Iterator[None]:
        """Let the block's modules hold the tensors in the slot."""
        installed = [(streamed, streamed.value, value, value._version) for streamed, value in self._in_slot]
        for streamed, _, value, _ in installed:
            streamed.set(value)
        self._flatten()
        try:
            yield
        finally:
            for streamed, on_host, value, version in installed:
                self._take_back(streamed, on_host, value, version)
            self._flatten()

    def _flatten(self) -> None:
        for module in self._recurrent:
            module._init_flat_weights()  # torch's list of the weights, which has those of before

    def _take_back(self, streamed: Streamed, on_host: Any, value: Any, version: int) -> None:
        """Let the modules hold a tensor in host memory again, with the changes that the forward has made."""
        current = streamed.value
        if current is value and self._is_in_slot(value):
            if value._version != version:
                with torch.no_grad():
                    for part, changed in zip(parts(on_host), parts(value), strict=True):
                        part.copy_(changed)
            streamed.set(on_host)
            return
        # The forward has replaced the tensor, for example by one of another type: that one is no longer streamed.
        self._in_slot = [pair for pair in self._in_slot if pair[0] is not streamed]
        if current is value:
            streamed.set(set_parts(on_host, parts(value)))
        self._weights.drop(streamed)

    def _is_in_slot(self, value: Any) -> bool:
        return all(part.untyped_storage()._cdata == self._storage for part in parts(value))

    def _saved_as_places(self, stream: Stream) -> saved_tensors_hooks:
        """Return the context in which autograd saves a tensor in the slot as its place, and others as outside of it."""
        outer = torch._C._autograd._top_saved_tensors_default_hooks(False)
        pack_other, unpack_other = outer or (_same, _same)
        storage, buffer, number = self._storage, self._buffer, self.number

        def pack(tensor: Tensor) -> Any:
            if tensor.untyped_storage()._cdata != storage:
                return pack_other(tensor)
            return _Place((tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset()))

        def unpack(packed: Any) -> Any:
            if not isinstance(packed, _Place):
                return unpack_other(packed)
            if not stream.contents.has(number):
                stream.begin(number, "backward")
            stream.slot(number).wait()
            dtype, *view = packed
            return buffer.data.view(dtype).as_strided(*view)

        return saved_tensors_hooks(pack, unpack)


class _Place(tuple[Any, ...]):
    """The type, size, stride and offset of a tensor in a slot."""

    __slots__ = ()


def make_streamable(blocks: Iterable[nn.Module]) -> None:
    """Let the `blocks` be streamed later.

    Apply it before checkpointing, so that a recomputed block is given its weights again.
    """
    for block in blocks:
        if _streamable(block) is None:
            changed: Any = block
            changed.forward = _forward(StreamableBlock(block))


def stream_blocks(blocks: Sequence[nn.Module], stream: Stream) -> None:
    """Let the `blocks`, whose weights `stream` has in this order, run with the weights in its slots.

    Those that `make_streamable` was not applied to must not be checkpointed yet.
    """
    make_streamable(blocks)
    for number, block in enumerate(blocks):
        streamable = _streamable(block)
        assert streamable is not None
        streamable.attach(stream, number)


def stream_of(model: nn.Module) -> Stream | None:
    """Return the stream of a model's streamed blocks, also if other techniques were applied to them; None without."""
    return next(iter(streams_of(model)), None)


def streams_of(model: nn.Module) -> list[Stream]:
    """Return the stream of each part of a divided model, or the only one of another model."""
    streams = (streamable.stream for streamable in map(_streamable, model.modules()) if streamable)
    return list(dict.fromkeys(stream for stream in streams if stream is not None))


def is_streamed(block: nn.Module) -> bool:
    """Return whether the weights of a block are streamed."""
    streamable = _streamable(block)
    return streamable is not None and streamable.stream is not None


def is_streamable(block: nn.Module) -> bool:
    """Return whether `make_streamable` was applied to a block."""
    return _streamable(block) is not None


def _streamable(module: nn.Module) -> StreamableBlock | None:
    streamable = getattr(module.forward, "streamable", None)
    return streamable if isinstance(streamable, StreamableBlock) else None


def _forward(streamable: StreamableBlock) -> Callable[..., Any]:
    block = streamable.block
    # transformers' layers wrap their forward in checkpointing code, which would recompute without these weights.
    switchable = checkpointing.is_switchable(block)
    unwrapped = getattr(type(block).forward, "__wrapped__", None) if switchable else None
    forward = functools.partial(unwrapped, block) if unwrapped else block.forward

    @functools.wraps(block.forward)
    def streamed_forward(*args: Any, **kwargs: Any) -> Any:
        if switchable and checkpointing.is_recomputed(block) and block.training and torch.is_grad_enabled():
            kwargs = checkpointing.without_cache(kwargs)
        return streamable.run(forward, args, kwargs)

    streamed_forward.streamable = streamable  # type: ignore[attr-defined]
    return streamed_forward


def is_in_backward() -> bool:
    """Return whether autograd runs a backward in this thread, such as for a forward that is recomputed."""
    return bool(torch._C._current_graph_task_id() != -1)


def _nodes(tree: Any) -> set[Node]:
    """Return the operators that have computed the tensors in nested inputs or outputs."""
    tensors = (leaf for leaf in trees.leaves(tree) if isinstance(leaf, Tensor))
    return {tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None}


def _same(value: Any) -> Any:
    return value
