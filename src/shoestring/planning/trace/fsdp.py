"""Sharded weights, gradients and optimizer states: FSDP2's `fully_shard` of each block and of the root module.

The order of events is that of torch 2.13's `torch/distributed/fsdp/_fully_shard/` (`_fsdp_state.py`,
`_fsdp_param_group.py`, `_fsdp_collectives.py`), with its defaults. Every parameter is sharded along its first dimension
and padded there. A block's weights are all-gathered into a buffer, then copied out to separate tensors; in forward that
buffer stays until the next block is gathered, in backward the next block's buffer is prefetched. Gradients are copied
into a reduce-scatter buffer that stays until the next block's; the root's weights stay from forward to the end of
backward. Each microbatch's gradients are reduced. Weights are gathered in their own type, without a mixed-precision
policy; frozen weights are sharded as well. With `CPUOffloadPolicy` the shards are in host memory: each is copied to the
device before the buffer is allocated, and the reduced gradients are moved off the device, all of a block at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from shoestring.base.errors import UsageError
from shoestring.planning.trace import redirected
from shoestring.planning.trace.event_log import EventLog
from shoestring.planning.trace.loading import children_first
from shoestring.planning.trace.microbatches import Hooks
from shoestring.planning.trace.record import Part
from shoestring.planning.trace.simulated_device import DEVICE, tensors
from shoestring.techniques import offload, trees, whole_weights


class FsdpShards(Hooks):
    """`fully_shard` of each block, then of the model, with or without resharding of the blocks after forward, and with
    the shards on the device or in host memory."""

    def __init__(
        self,
        log: EventLog,
        model: nn.Module,
        blocks: list[nn.Module],
        gpus: int,
        *,
        reshard_after_forward: bool,
        on_host: bool = False,
    ) -> None:
        self.used = dict[str, bool]()
        log.erase([*model.parameters(), *model.buffers()])
        self._model, self._reshards = model, reshard_after_forward
        self._own_rows: dict[nn.Parameter, nn.Parameter] = {}
        self._shared = _SharedState(log, gpus, on_host=on_host)
        self._has_gathered_each = False
        self._blocks: list[tuple[nn.Module, _Group]] = []
        loaded_tensors: set[Tensor] = set()
        for block in blocks:
            self._blocks.append((block, _Group(self._load(log, block, loaded_tensors), self._shared)))
        self._root = _Group(self._load(log, model, loaded_tensors), self._shared)

    def attach(self) -> None:
        """Let calls of the model and its blocks gather the weights; outside of updates its parameters are the shards.

        Call it when all techniques are applied.
        """
        whole_weights.provide(self._model, self.whole)
        for block, group in self._blocks:
            _redirect(block, group, reshard_after_forward=self._reshards)
        self._model.register_forward_pre_hook(lambda *_: self._root.gather())
        self._model.register_forward_hook(lambda *_: self._shared.free_all_gather_buffer())
        self._register(self._own_rows)

    def _load(self, log: EventLog, module: nn.Module, loaded_tensors: set[Tensor]) -> dict[nn.Parameter, nn.Parameter]:
        """Move tensors that are not `loaded_tensors` to the device, and replace parameters by their shards.

        `fully_shard` moves all of a module's parameters and buffers first (`_fsdp_init.py: _move_states_to_device`),
        and the whole parameters are freed when it returns.
        """
        modules = list(children_first(module))
        parameters = _new((p for m in modules for p in m.parameters(recurse=False)), loaded_tensors)
        for parameter in parameters:
            log.revive(parameter, _size(parameter), "loading copies")
        for buffer in _new((b for m in modules for b in m.buffers(recurse=False)), loaded_tensors):
            log.revive(buffer, _size(buffer), "buffers")
        shards = {parameter: self._shared.shard(parameter) for parameter in parameters}
        for parameter in parameters:
            log.release(parameter)
        self._own_rows |= shards
        return shards

    def gathering(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        """Return the loss: hooks gather the weights."""
        return loss

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Return a context in which all weights are gathered."""
        groups = [*self._groups(), self._root]
        self._register({shard: parameter for parameter, shard in self._own_rows.items()})
        for group in groups:
            group.prefetch("gathered weights")
            group.gather()
        self._shared.keeps_gathered = True
        try:
            yield
        finally:
            self._shared.keeps_gathered = False
            for group in groups:
                group.reshard()
            self._register(self._own_rows)

    def begin_update(self) -> None:
        """Let the model's parameters be the whole ones, which `before_update` gathers."""
        self._register({shard: parameter for parameter, shard in self._own_rows.items()})

    def end_update(self, used: Iterable[Any]) -> None:  # noqa: ARG002
        """Assume that all parameters have gradients."""
        self._register(self._own_rows)

    def position(self) -> float:
        return 0.0

    def before_update(self) -> None:
        """Gather each module once before the first update, as `training/engine/parallel/fully_sharded.py:
        _watch_gradients` does.

        FSDP2 has no separate stream for a gathering that is asked for (`get_all_gather_streams` in
        `_fsdp_param_group.py`).
        """
        for group in () if self._has_gathered_each else (*self._groups(), self._root):
            group.prefetch("gathered weights")
            group.gather()
            group.reshard()
        self._has_gathered_each = True

    def before_forward(self) -> None:
        self._shared.forward_order.clear()
        self._root.state = "forward"
        self._root.gather()

    def before_backward(self) -> None:
        """Prefetch the last block's weights, as hooks on the root's results do."""
        self._shared.free_all_gather_buffer()
        self._root.state = "backward"
        for group in self._shared.forward_order[-1:]:
            group.prefetch()

    def after_backward(self) -> None:
        """Reduce the groups that no hook has reduced: blocks whose inputs need no gradient, and the root."""
        groups = [*reversed(self._groups()), self._root]
        for group in groups:
            if group.state != "reduced":
                group.reduce()
        for group in groups:
            group.reset()
        self._shared.reduce_scatter_buffer = None

    def _groups(self) -> list[_Group]:
        return [group for _, group in self._blocks]

    def _register(self, replacements: Mapping[nn.Parameter, nn.Parameter]) -> None:
        for module in self._model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    # Set the attribute, so that recurrent layers update their own list of weights.
                    setattr(module, name, replacements[parameter])


class _SharedState:
    """State that all groups share: the number of GPUs, the memory of the shards, the buffers that outlive a block, the
    order of forward."""

    def __init__(self, log: EventLog, gpus: int, *, on_host: bool) -> None:
        self.log = log
        self.gpus, self.on_host = gpus, on_host
        self.keeps_gathered = False
        """Whether blocks leave their weights gathered after forward."""
        self.forward_order: list[_Group] = []
        self.all_gather_buffer: Tensor | None = None
        """The last block's all-gather buffer, which is freed when the next block's weights are copied out."""
        self.reduce_scatter_buffer: Tensor | None = None
        """The last block's reduce-scatter buffer."""

    def free_all_gather_buffer(self) -> None:
        self.all_gather_buffer = None

    def shard(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return the shard of the first GPU, whose part of the rows is the largest."""
        rows, *row_shape = parameter.shape or (1,)
        shard = torch.empty(-(-rows // self.gpus), *row_shape, dtype=parameter.dtype, device=DEVICE)
        self.log.label([shard], "loading copies" if self.on_host else "weights")
        if self.on_host:
            shard = shard.to(offload.HOST)
        return nn.Parameter(shard, requires_grad=parameter.requires_grad)

    def allocate_buffer(self, size: int, part: Part) -> Tensor:
        buffer = torch.empty(size, dtype=torch.uint8, device=DEVICE)
        self.log.label([buffer], part)
        return buffer


class _Group:
    """Parameters that are gathered and reduced together, with their shards."""

    def __init__(self, shards: Mapping[nn.Parameter, nn.Parameter], shared: _SharedState) -> None:
        self.state: Literal["idle", "forward", "backward", "reduced"] = "idle"
        self._shared = shared
        self._shards = shards
        self._bytes = {parameter: _size(shard) * shared.gpus for parameter, shard in shards.items()}
        self._prefetched: Tensor | None = None
        self._is_gathered = False
        self._forward_indices: list[int] = []
        """The group's indices in the order of forward, for each call whose backward has not run yet."""
        trained_types = {str(shard.dtype) for shard in shards.values() if shard.requires_grad}
        if len(trained_types) > 1:
            raise UsageError(
                f"sharding: the trainable weights of one block have the types {', '.join(sorted(trained_types))}, "
                "and FSDP2 reduces gradients of one type only",
                hint="set sharding=zero1, which shards the optimizer states of any model",
            )

    @property
    def keeps_gathered(self) -> bool:
        return self._shared.keeps_gathered

    def prefetch(self, part: Part = "all-gather buffers") -> None:
        """Start to gather: allocate the buffer that receives all GPUs' shards."""
        if self._shards and not self._is_gathered and self._prefetched is None:
            copies = [shard.to(DEVICE) for shard in self._shards.values()] if self._shared.on_host else []
            self._shared.log.label(copies, part)
            self._prefetched = self._shared.allocate_buffer(sum(self._bytes.values()), part)

    def gather(self) -> None:
        """Gather the whole weights and copy them out of the buffer."""
        self.prefetch()
        if self._prefetched is None:
            return
        for parameter, size in self._bytes.items():
            self._shared.log.revive(parameter, size, "gathered weights")
        if self.state == "forward":
            # Not earlier: `wait_for_unshard` references the previous buffer until it returns.
            self._shared.all_gather_buffer = self._prefetched
        self._prefetched, self._is_gathered = None, True

    def reshard(self) -> None:
        """Free the whole weights, so that only this GPU's shards remain."""
        if self._is_gathered:
            for parameter in self._shards:
                self._shared.log.release(parameter)
        self._is_gathered = False

    def finish_forward(self) -> None:
        self._forward_indices.append(len(self._shared.forward_order))
        self._shared.forward_order.append(self)
        self.state = "idle"

    def begin_backward(self, _: Tensor) -> None:
        """Gather the weights for backward, and prefetch those of the next block in backward."""
        if self.state == "backward":
            return
        self.state = "backward"
        self.gather()
        if self._forward_indices and (index := self._forward_indices.pop()):
            self._shared.forward_order[index - 1].prefetch()

    def reduce(self) -> None:
        """Reduce-scatter the gradients: sum them over the GPUs and keep those of this GPU's shards."""
        self.state = "reduced"
        gradients = {parameter: parameter.grad for parameter in self._shards if parameter.grad is not None}
        for parameter in gradients:
            parameter.grad = None
        self.reshard()
        self._shared.reduce_scatter_buffer = None
        if not gradients:
            return
        shards = [self._shards[parameter] for parameter in gradients]
        buffer_bytes = sum(map(_size, shards)) * self._shared.gpus
        buffer = self._shared.allocate_buffer(buffer_bytes, "reduce-scatter buffers")
        gradients.clear()
        received = torch.empty(sum(shard.numel() for shard in shards), dtype=shards[0].dtype, device=DEVICE)
        self._shared.log.label([received], "gradients")
        for shard, piece in zip(shards, received.split([shard.numel() for shard in shards]), strict=True):
            gradient = piece.view(shard.shape).to(shard.device)
            if shard.grad is None:
                shard.grad = gradient
            else:
                shard.grad += gradient
        self._shared.reduce_scatter_buffer = buffer

    def reset(self) -> None:
        self._prefetched, self.state = None, "idle"
        self._forward_indices.clear()


def _redirect(block: nn.Module, group: _Group, *, reshard_after_forward: bool) -> None:
    """Gather the group's weights for each call of the block, except for a call in backward, which has them already."""

    def call(run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        group.state = "forward"
        group.gather()
        args, kwargs = _reduce_in_backward(group, (args, kwargs))
        results = run(*args, **kwargs)
        if reshard_after_forward and not group.keeps_gathered:
            group.reshard()
        group.finish_forward()
        for tensor in tensors(results):
            if tensor.requires_grad:
                tensor.register_hook(group.begin_backward)
        return results

    redirected.redirect(block, call)


def _reduce_in_backward(group: _Group, arguments: Any) -> Any:
    """Return the arguments, wrapped so that the group is reduced once backward has computed their gradients."""
    leaves, form = trees.flatten(arguments)
    indices = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if indices and torch.is_grad_enabled():
        apply: Any = _Reduce.apply
        for index, tensor in zip(indices, apply(group, *(leaves[index] for index in indices)), strict=True):
            leaves[index] = tensor
    return trees.unflatten(leaves, form)


class _Reduce(torch.autograd.Function):
    """The identity in forward; the group's reduction in backward."""

    @staticmethod
    def forward(ctx: Any, group: _Group, *arguments: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        return arguments

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        ctx.group.reduce()
        return None, *gradients


def _new(tensors: Iterable[Any], loaded_tensors: set[Tensor]) -> list[Any]:
    """Return the tensors that are not among the `loaded_tensors`, each once, and add them to these."""
    new = []
    for tensor in tensors:
        if tensor not in loaded_tensors:
            loaded_tensors.add(tensor)
            new.append(tensor)
    return new


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
