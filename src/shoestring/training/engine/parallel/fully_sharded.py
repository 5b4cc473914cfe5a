"""Weights, gradients and optimizer states divided among the ranks, by torch's FSDP2 (`fully_shard`).

Each block and the model itself gather their weights for forward and backward, and add the gradients of all ranks after
each backward. So the work of an update contains collectives, which all ranks must open in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.techniques import deferred_casts, offload, whole_weights
from shoestring.techniques.freed_memory import return_freed_memory
from shoestring.training.checkpoint.divided import divide_as, is_divided, own, rows_by_rank
from shoestring.training.checkpoint.trained import state_like
from shoestring.training.engine.memory import Failure
from shoestring.training.engine.parallel import fsdp_versions
from shoestring.training.engine.parallel.errors import RanksApartError
from shoestring.training.engine.parallel.ranks import Ranks
from shoestring.training.session.stop import SessionOver

T = TypeVar("T")

HINT = "set sharding=zero1, which divides the optimizer states of any model"


def is_fully_sharded(settings: Settings, ranks: Ranks) -> bool:
    """Return whether the weights of a run with these ranks are divided among them."""
    return settings.sharding in ("zero2", "zero3") and ranks.size > 1


class _Root(nn.Module):
    """The root of FSDP2's modules. The weights outside of the blocks are gathered while its forward calls a function,
    which may use any method of the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[], Any]) -> Any:
        return function()


class FullySharded:
    """A model that `shard` has divided."""

    def __init__(
        self,
        model: nn.Module,
        ranks: Ranks,
        device: torch.device,
        modules: Sequence[Any],
        *,
        reshard_after_forward: bool = False,
    ) -> None:
        """`modules` are those that FSDP2 gathers, the root at the end."""
        self._model, self._modules, self._ranks, self._device = model, modules, ranks, device
        self._reshards_blocks = reshard_after_forward
        self._has_run = self._is_whole = self._is_running = False
        whole_weights.provide(model, self.whole)
        self.used = dict[str, bool]()
        """Whether each trained parameter has got a gradient since the last `begin_update`."""

    def begin_update(self) -> None:
        """Note from now on which parameters get a gradient."""
        if not self.used:
            self._watch_gradients()
        self.used = dict.fromkeys(self.used, False)

    def end_update(self, used: Sequence[bool]) -> None:
        """Remove the gradients of parameters that no rank has `used`, which FSDP2 sets to zero on all ranks."""
        parameters = dict(self._model.named_parameters())
        for name, is_used in zip(self.used, used, strict=True):
            if not is_used:
                parameters[name].grad = None

    def position(self) -> float:
        """Return the number of collectives that this rank has opened; -1 - rank if the backend does not count them."""
        try:
            return float(dist.group.WORLD._get_backend(self._device)._get_sequence_number_for_group())  # type: ignore[union-attr]
        except RuntimeError:
            return -1.0 - self._ranks.rank

    def gathering(self, function: Callable[..., T]) -> Callable[..., T]:
        """Return `function`, which uses the model, with the weights outside of the blocks gathered while it runs."""

        def run(*arguments: Any) -> T:
            was_running, self._is_running = self._is_running, True
            try:
                result: T = self._modules[-1](partial(function, *arguments))
            except RuntimeError as error:
                if "mixed torch.Tensor and DTensor" not in str(error):
                    raise
                raise UsageError(
                    f"sharding: a part of a block is used without the forward that gathers its weights: {error}",
                    hint=f"call the block itself; or {HINT}",
                ) from error
            finally:
                self._is_running = was_running
            return result

        return run

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Return a context in which all weights are gathered, for code that uses them without the forward of a block.

        All ranks enter it together, outside of a forward or within `gathering`.
        """
        if self._is_whole:
            yield
            return
        if not (self._has_run or self._is_running):
            self._modules[-1](lambda: None)  # FSDP2 takes the module whose forward comes first for the root
        self._has_run = self._is_whole = True
        *blocks, root = self._modules
        try:
            for module in self._modules:
                module.unshard()
            for block in blocks:
                block.set_reshard_after_forward(False, recurse=False)
            yield
        finally:
            self._is_whole = False
            for block in blocks:
                block.set_reshard_after_forward(self._reshards_blocks, recurse=False)
                block.reshard()
            if not self._is_running:
                root.reshard()

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function that uses the model, without backward, on all ranks, as `Ranks.call`."""
        try:
            result = self._ranks.call(lambda: self.gathering(function)(), self.position)
        except SessionOver:
            if fsdp_versions.is_supported():
                fsdp_versions.reset(self._modules)
            raise
        if isinstance(result, Failure):
            self.reset(result)
        return result

    def reset(self, failure: Failure) -> None:
        """Bring FSDP2 back to the state before forward, after all ranks have left forward or backward.

        Raises RanksApartError where this version of torch cannot be brought back.
        """
        if not fsdp_versions.is_supported():
            raise RanksApartError(failure, on_all_ranks=True)
        fsdp_versions.reset(self._modules)

    def free(self) -> None:
        """Free the gathered weights, which a forward without backward leaves: they would not follow later changes."""
        for module in self._modules:
            module.reshard()

    def agree(self, pieces: Iterator[T]) -> Iterator[T]:
        """Yield the pieces, each when all ranks have it. If one of them has to stop, all do."""
        while (piece := self._ranks.call(lambda: next(pieces, None))) is not None:
            if isinstance(piece, Failure):
                raise torch.OutOfMemoryError(piece.message)
            yield piece

    @contextmanager
    def freeing(self) -> Iterator[None]:
        """Free the gathered weights after the body."""
        try:
            yield
        finally:
            self.free()

    def collect(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the whole weights on the first rank, in host memory, one at a time; on other ranks an empty dict."""
        collected = {}
        for name, tensor in weights.items():
            parts = [tensor] if self._ranks.is_first else []
            if is_divided(tensor):
                shapes = [(rows.count, *tensor.shape[1:]) for rows in rows_by_rank(len(tensor), self._ranks.size)]
                parts = self._ranks.collect(own(tensor).detach().cpu().contiguous(), shapes)
            if parts:
                collected[name] = torch.cat(parts) if is_divided(tensor) else tensor
        return collected

    def own_rows(self, saved: Mapping[str, Any], optimizer: Any) -> dict[str, Any]:
        """Return the sections of a checkpoint with this rank's rows of the tensors that are divided now."""
        weights = state_like(self._model, saved["model"])
        parameters = offload.stepped_parameters(optimizer)
        sections = dict(saved)
        sections["model"] = _like_each(saved["model"], weights)
        if "averaged" in saved:
            sections["averaged"] = _like_each(saved["averaged"], weights)
        sections["optimizer"] = _optimizer_like(saved["optimizer"], parameters)
        return sections

    def _watch_gradients(self) -> None:
        """Register hooks at the gathered parameters, which are the same objects in each gathering."""
        for module in self._modules:
            module.unshard()
            for name, parameter in self._model.named_parameters():
                if parameter.requires_grad and not is_divided(parameter) and name not in self.used:
                    self.used[name] = False
                    parameter.register_post_accumulate_grad_hook(self._note_use(name))
            module.reshard()

    def _note_use(self, name: str) -> Callable[[Any], None]:
        def note(_: Any) -> None:
            self.used[name] = True

        return note


def shard(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    ranks: Ranks,
    device: torch.device,
    *,
    reshard_after_forward: bool,
    on_host: bool = False,
) -> FullySharded:
    """Divide the model's parameters among the ranks, on `device`; each block is gathered by itself.

    With `reshard_after_forward` (zero3) the gathered weights of a block are freed after its forward, without it (zero2)
    after its backward. With `on_host` the rows of each rank and their gradients are in host memory, from which they are
    copied to the device when they are gathered.

    Raises UsageError for a model that FSDP2 does not support.
    """
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    _require_supported(model, blocks)
    # A run changes its model in one process group, whose collectives `position` counts.
    assert dist.group.WORLD is not None
    mesh = DeviceMesh.from_group(dist.group.WORLD, device.type)
    _leave_recurrent_weights_in_place(model)
    modules: list[Any] = []
    # torch rounds each tensor in page-locked memory up to a power of two, and such memory cannot be swapped out.
    policy = CPUOffloadPolicy(pin_memory=False) if on_host else OffloadPolicy()
    for module, frees in [*((block, reshard_after_forward) for block in blocks), (_Root(model), False)]:
        deferred_casts.convert_all(module)
        modules.append(fully_shard(module, mesh=mesh, reshard_after_forward=frees, offload_policy=policy))
        return_freed_memory()
    fsdp_versions.exchange_unused(modules)
    return FullySharded(model, ranks, device, modules, reshard_after_forward=reshard_after_forward)


def _leave_recurrent_weights_in_place(model: nn.Module) -> None:
    """Let recurrent layers use the gathered weights where FSDP2 gathers them.

    On a GPU their forward moves new weights to one buffer (`flatten_parameters` in `torch/nn/modules/rnn.py`), and what
    FSDP2 gathers later would not reach it: the layer would compute with the weights of the first update for ever.
    """
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            vars(module)["flatten_parameters"] = lambda: None


def _require_supported(model: nn.Module, blocks: Sequence[nn.Module]) -> None:
    """Raise UsageError for a model that FSDP2 does not support, naming the parameters."""
    problems, group_of = [], dict[nn.Parameter, int]()
    for number, module in enumerate([*blocks, model]):
        types = set()
        for name, parameter in module.named_parameters():
            other = group_of.setdefault(parameter, number)
            if other != number and number < len(blocks):
                problems.append(f"{name}: two blocks share this parameter")
            if other == number and parameter.requires_grad:
                types.add(str(parameter.dtype).removeprefix("torch."))
            if other == number and not parameter.ndim:
                problems.append(f"{name}: a parameter without dimensions has no rows to divide")
        if len(types) > 1:
            problems.append(
                f"the trainable weights of one block have the types {', '.join(sorted(types))}, and FSDP2 reduces "
                "gradients of one type only"
            )
    names = {parameter: name for name, parameter in model.named_parameters()}
    in_blocks = {parameter for block in blocks for parameter in block.parameters()}
    inside = {id(module) for block in blocks for module in block.modules()}
    for module in model.modules():
        shared = () if id(module) in inside else [p for p in module.parameters(recurse=False) if p in in_blocks]
        problems += [
            f"{names[parameter]}: it is shared by a block and another part of the model" for parameter in shared
        ]
    if problems:
        raise UsageError("sharding: FSDP2 does not support this model", problems=problems, hint=HINT)


def _like_each(saved: Any, examples: Mapping[str, Any]) -> Any:
    if not isinstance(saved, Mapping):
        return saved
    return {name: divide_as(value, examples[name]) if name in examples else value for name, value in saved.items()}


def _optimizer_like(saved: Any, parameters: Sequence[Any]) -> Any:
    """Return an optimizer's state whose tensors of the shape of their parameter are divided as it is."""
    if not isinstance(saved, Mapping) or not isinstance(saved.get("state"), Mapping):
        return saved
    state: dict[Any, Any] = {}
    for index, values in saved["state"].items():
        is_known = isinstance(index, int) and 0 <= index < len(parameters) and isinstance(values, Mapping)
        state[index] = (
            {
                name: divide_as(value, parameters[index]) if hasattr(value, "shape") else value
                for name, value in values.items()
            }
            if is_known
            else values
        )
    return {**saved, "state": state}
