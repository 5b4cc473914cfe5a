"""An optimizer of which each rank has the states of some parameters, as in stage 1 of ZeRO.

The step of a rank updates its own parameters, which it then sends to the others. The step of an optimizer of
torch.optim looks at one parameter at a time, so the bits are those of a whole optimizer on each rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from shoestring.base.errors import UsageError
from shoestring.techniques import offload
from shoestring.training.engine.parallel import messages
from shoestring.training.engine.parallel.buckets import Buckets
from shoestring.training.engine.parallel.ranks import Ranks

_ONE_BY_ONE = ("torch", "bitsandbytes", "transformers")
"""The packages whose optimizers update each parameter from its own gradient and state alone."""


class DividedOptimizer:
    """Wraps a recipe's optimizer before its first step. Its `param_groups` have all parameters, as in any optimizer."""

    def __init__(self, optimizer: Optimizer, ranks: Ranks, device: torch.device) -> None:
        self._optimizer, self._ranks, self._buckets = optimizer, ranks, Buckets(device, ranks)
        self._owners = divide([group["params"] for group in optimizer.param_groups], ranks.size)
        offload.drop_states(optimizer, [item for item, owner in self._owners.items() if owner != ranks.rank])
        self._collected: dict[int, Any] | None = None

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's parameter groups, with all parameters."""
        return self._optimizer.param_groups

    @property
    def state(self) -> Mapping[Any, Any]:
        """The states of this rank's parameters."""
        return self._optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:
        return self._optimizer.defaults

    @property
    def stepped_parameters(self) -> list[Any]:
        """The parameters in the memory of their states, in host memory if these are offloaded."""
        return offload.stepped_parameters(self._optimizer)

    def step(self) -> None:
        """Update this rank's parameters. `publish` completes the step."""
        with self._own_parameters():
            self._optimizer.step()
        self._buckets.allocate(self._owners)

    def publish(self) -> None:
        """Replace the parameters of other ranks by theirs, after all of them have made their step."""
        for rank in range(self._ranks.size):
            self._buckets.broadcast([parameter.data for parameter in self._parameters_of(rank)], rank)
        self._buckets.free()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of all parameters."""
        self._optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the whole optimizer after `collect`, on the first rank, or else that of this rank."""
        state = self._optimizer.state_dict()
        if self._collected is not None:
            state["state"] = dict(sorted({**state["state"], **self._collected}.items()))
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the states of this rank's parameters from those of the whole optimizer."""
        own = {index for index, rank in enumerate(self._owners.values()) if rank == self._ranks.rank}
        states = {index: values for index, values in state["state"].items() if index in own}
        self._optimizer.load_state_dict({**state, "state": states})

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Return a context in which the first rank has a copy of the states of all ranks, for a checkpoint."""
        content = b"" if self._ranks.is_first else messages.pack(self._optimizer.state_dict()["state"])
        self._collected = {}
        try:
            for states in self._ranks.send_to_first(content):
                self._collected |= messages.unpack(states)
            yield
        finally:
            self._collected = None

    def _parameters_of(self, rank: int) -> list[Tensor]:
        return [parameter for parameter, owner in self._owners.items() if owner == rank]

    @contextmanager
    def _own_parameters(self) -> Iterator[None]:
        """Leave only this rank's parameters in the groups."""
        groups = self._optimizer.param_groups
        parameters = [group["params"] for group in groups]
        try:
            for group in groups:
                group["params"] = [item for item in group["params"] if self._owners[item] == self._ranks.rank]
            yield
        finally:
            for group, all_parameters in zip(groups, parameters, strict=True):
                group["params"] = all_parameters


def require_divisible(optimizer: Optimizer) -> None:
    """Raise UsageError for an optimizer whose step may look at several parameters, or at none of a rank's own."""
    optimizer = offload.on_device(optimizer)
    kind = type(optimizer)
    has_hooks = any(getattr(optimizer, f"_optimizer_step_{moment}_hooks", ()) for moment in ("pre", "post"))
    problem = "it has hooks for its steps" if has_hooks else ""
    if kind.__module__.split(".")[0] not in _ONE_BY_ONE:
        problem = f"it is not one of {', '.join(_ONE_BY_ONE)}"
    if problem:
        raise UsageError(
            f"sharding=zero1: the steps of {kind.__module__}.{kind.__qualname__} may need all parameters: {problem}",
            hint="set sharding=ddp, in which each GPU makes the whole step",
        )


def collected(optimizer: Any) -> AbstractContextManager[None]:
    """Return a context in which the first rank has the states of the whole optimizer."""
    return optimizer.collected() if isinstance(optimizer, DividedOptimizer) else nullcontext()


def divide(groups: Sequence[Sequence[Tensor]], size: int) -> dict[Tensor, int]:
    """Return the rank of each parameter, in the order of the groups.

    As in torch's ZeroRedundancyOptimizer, the largest parameters of each group come first, each to the rank with the
    smallest share so far.
    """
    elements = [0] * size
    owners: dict[Tensor, int] = {parameter: 0 for group in groups for parameter in group}
    for group in groups:
        for parameter in sorted(group, key=Tensor.numel, reverse=True):
            rank = elements.index(min(elements))
            owners[parameter] = rank
            elements[rank] += parameter.numel()
    return owners
