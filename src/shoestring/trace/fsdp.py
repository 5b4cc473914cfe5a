"""Weights, gradients and states divided among GPUs: FSDP2's `fully_shard` of each block and of the rest, the root.

The order of events is that of torch 2.13's `torch/distributed/fsdp/_fully_shard/` (`_fsdp_state.py`,
`_fsdp_param_group.py`, `_fsdp_collectives.py`), with its defaults: every parameter is divided along its first dimension
and padded there; a block's weights are gathered into a buffer, then copied out to tensors of their own; in forward that
buffer stays until the next block is gathered, in backward the next block's buffer is filled ahead; gradients are laid
into a buffer that stays until the next block's; the root's weights stay from forward to the end of backward. Each
microbatch's gradients are reduced. Weights are gathered in their own type, without a mixed-precision policy; frozen
ones are divided as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from shoestring.errors import UsageError
from shoestring.techniques import trees
from shoestring.trace.pretend import DEVICE, tensors
from shoestring.trace.record import Part
from shoestring.trace.recorder import Recorder
from shoestring.trace.single_device import SingleDevice


class FsdpShards(SingleDevice):
    """`fully_shard` of each block, then of the model; blocks' weights leave after forward, or stay until backward."""

    def __init__(
        self, recorder: Recorder, model: nn.Module, blocks: list[nn.Module], gpus: int, *, reshard_after_forward: bool
    ) -> None:
        self._model = model
        parameters = list(model.parameters())
        recorder.erase(parameters)
        self._shards = {parameter: _shard(parameter, gpus) for parameter in parameters}
        recorder.label(self._shards.values(), "weights")
        self.trained = [shard for shard in self._shards.values() if shard.requires_grad]
        self._line = _Line(recorder, gpus)
        left = dict(self._shards)
        self._groups = []
        for block in blocks:
            own = {parameter: left.pop(parameter) for parameter in block.parameters() if parameter in left}
            self._groups.append(_Group(own, self._line))
            _hook(block, self._groups[-1], reshard_after_forward=reshard_after_forward)
        self._root = _Group(left, self._line)
        model.register_forward_pre_hook(lambda *_: self._root.gather())
        model.register_forward_hook(lambda *_: self._line.drop_gathered())

    @contextmanager
    def during_optimizer_setup(self) -> Iterator[None]:
        self._register(self._shards)
        try:
            yield
        finally:
            self._register({shard: parameter for parameter, shard in self._shards.items()})

    def before_forward(self) -> None:
        self._line.order.clear()
        self._root.state = "forward"
        self._root.gather()

    def before_backward(self) -> None:
        """What hooks on the root's results do: the last block's weights are fetched."""
        self._line.drop_gathered()
        self._root.state = "backward"
        for group in self._line.order[-1:]:
            group.fetch()

    def after_backward(self) -> None:
        """Reduce what no hook has reduced: blocks whose inputs need no gradient, and the root."""
        groups = [*reversed(self._groups), self._root]
        for group in groups:
            if group.state != "reduced":
                group.reduce()
        for group in groups:
            group.rest()
        self._line.reduced = None

    def _register(self, successors: Mapping[nn.Parameter, nn.Parameter]) -> None:
        for module in self._model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    # By attribute, so that recurrent layers renew their own list of weights.
                    setattr(module, name, successors[parameter])


class _Line:
    """What the groups have in common: the number of GPUs, the buffers that outlive a block, the order of forward."""

    def __init__(self, recorder: Recorder, gpus: int) -> None:
        self.recorder = recorder
        self.gpus = gpus
        self.order: list[_Group] = []
        self.gathered: Tensor | None = None
        """The last block's all-gather buffer, which is freed when the next block's weights are copied out."""
        self.reduced: Tensor | None = None
        """The last block's reduce-scatter buffer."""

    def drop_gathered(self) -> None:
        self.gathered = None

    def buffer(self, size: int, part: Part) -> Tensor:
        made = torch.empty(size, dtype=torch.uint8, device=DEVICE)
        self.recorder.label([made], part)
        return made


class _Group:
    """Parameters that are gathered and reduced together, by their shards."""

    def __init__(self, shards: Mapping[nn.Parameter, nn.Parameter], line: _Line) -> None:
        self.state: Literal["idle", "forward", "backward", "reduced"] = "idle"
        self._line = line
        self._shards = shards
        self._bytes = {parameter: _size(shard) * line.gpus for parameter, shard in shards.items()}
        self._fetched: Tensor | None = None
        self._whole = False
        self._places: list[int] = []
        """Where in the order of forward this group ran, for each time that backward has not been through."""
        trained = {str(shard.dtype) for shard in shards.values() if shard.requires_grad}
        if len(trained) > 1:
            raise UsageError(
                f"sharding: one block's trainable weights are of the types {', '.join(sorted(trained))}, "
                "and FSDP2 reduces gradients of one type",
                hint="sharding=zero1 divides the optimizer's states of any model",
            )

    def fetch(self) -> None:
        """Begin to gather: all GPUs' shards arrive in a buffer."""
        if self._shards and not self._whole and self._fetched is None:
            self._fetched = self._line.buffer(sum(self._bytes.values()), "all-gather buffers")

    def gather(self) -> None:
        """Have the weights whole, copied out of the buffer."""
        self.fetch()
        if self._fetched is None:
            return
        for parameter, size in self._bytes.items():
            self._line.recorder.revive(parameter, size, "gathered weights")
        if self.state == "forward":
            # Only now: `wait_for_unshard` has a name for the one before until it returns.
            self._line.gathered = self._fetched
        self._fetched, self._whole = None, True

    def scatter(self) -> None:
        """Keep this GPU's shards alone."""
        if self._whole:
            for parameter in self._shards:
                self._line.recorder.release(parameter)
        self._whole = False

    def ran(self) -> None:
        self._places.append(len(self._line.order))
        self._line.order.append(self)
        self.state = "idle"

    def begin_backward(self, _: Tensor) -> None:
        """Gather again, and fetch the block that backward comes to next."""
        if self.state == "backward":
            return
        self.state = "backward"
        self.gather()
        if self._places and (place := self._places.pop()):
            self._line.order[place - 1].fetch()

    def reduce(self) -> None:
        """Add the gradients up over the GPUs; each keeps its shard's."""
        self.state = "reduced"
        gradients = {parameter: parameter.grad for parameter in self._shards if parameter.grad is not None}
        for parameter in gradients:
            parameter.grad = None
        self.scatter()
        self._line.reduced = None
        if not gradients:
            return
        shards = [self._shards[parameter] for parameter in gradients]
        buffer = self._line.buffer(sum(map(_size, shards)) * self._line.gpus, "reduce-scatter buffers")
        gradients.clear()
        received = torch.empty(sum(shard.numel() for shard in shards), dtype=shards[0].dtype, device=DEVICE)
        self._line.recorder.label([received], "gradients")
        for shard, piece in zip(shards, received.split([shard.numel() for shard in shards]), strict=True):
            if shard.grad is None:
                shard.grad = piece.view(shard.shape)
            else:
                shard.grad += piece.view(shard.shape)
        self._line.reduced = buffer

    def rest(self) -> None:
        self._fetched, self.state = None, "idle"
        self._places.clear()


def _hook(block: nn.Module, group: _Group, *, reshard_after_forward: bool) -> None:
    def before(_: nn.Module, args: Any, kwargs: Any) -> Any:
        if group.state == "backward":  # computed again
            group.gather()
            return args, kwargs
        group.state = "forward"
        group.gather()
        return _reduced_after(group, (args, kwargs))

    def after(_: nn.Module, __: Any, results: Any) -> None:
        if group.state == "backward":
            return
        if reshard_after_forward:
            group.scatter()
        group.ran()
        for tensor in tensors(results):
            if tensor.requires_grad:
                tensor.register_hook(group.begin_backward)

    block.register_forward_pre_hook(before, with_kwargs=True)
    block.register_forward_hook(after)


def _reduced_after(group: _Group, arguments: Any) -> Any:
    """The arguments, such that the group is reduced when their gradients are there."""
    leaves, form = trees.flatten(arguments)
    watched = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if watched and torch.is_grad_enabled():
        apply: Any = _Reduce.apply
        for place, tensor in zip(watched, apply(group, *(leaves[place] for place in watched)), strict=True):
            leaves[place] = tensor
    return trees.unflatten(leaves, form)


class _Reduce(torch.autograd.Function):
    """Nothing in forward; the group's reduction in backward."""

    @staticmethod
    def forward(ctx: Any, group: _Group, *arguments: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        return arguments

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        ctx.group.reduce()
        return None, *gradients


def _shard(parameter: nn.Parameter, gpus: int) -> nn.Parameter:
    """What the first GPU has: its part of the rows, which is the largest."""
    rows, *rest = parameter.shape or (1,)
    part = torch.empty(-(-rows // gpus), *rest, dtype=parameter.dtype, device=DEVICE)
    return nn.Parameter(part, requires_grad=parameter.requires_grad)


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
