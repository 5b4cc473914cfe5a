"""AdamW with bitsandbytes' states: its own to train with, and one that only stores what they take to estimate with.

After bitsandbytes 0.45 (`bitsandbytes/optim/optimizer.py`: `Optimizer8bit`, `Optimizer2State`). A parameter of 4096
values or more has two states of one byte a value, each with an fp32 scale for every 256 of them, and all share two
fp32 tables of 256 entries; a smaller one has fp32 states. A step goes tensor by tensor, in place, without temporaries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shoestring.errors import UsageError
from shoestring.recipe import extras

EXTRA = "bitsandbytes"

_STATES = {"8bit": (8, False), "paged": (32, True), "paged_8bit": (8, True)}
"""Bits of each value of a state, and whether large states may be swapped out, by the option `optimizer_states`."""

SMALLEST = 4096
"""Values from which on states have 8 bits (`min_8bit_size`)."""
BLOCK = 256
"""Values that share a scale (`blocksize` of `Optimizer2State.init_state`)."""
PAGED = 100_000
"""Values from which on a paged state lives in CUDA's managed memory (`get_state_buffer`): no bytes of the device's own
allocator, since the driver brings pages as they are touched and takes them away where memory is short."""
TABLE = 256


class BlockwiseAdamW(Optimizer):
    """States of AdamW as bitsandbytes lays them out. Its step changes no weight: there is nothing to train with."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, *, bits: int = 8, paged: bool = False) -> None:
        """`bits`: 8 or 32 for each value of a state; `paged`: whether large states may be swapped out."""
        super().__init__(params, {"lr": lr})
        self._bits, self._paged = bits, paged
        self._tables: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Make the states that are not there yet, and go over the weights as one kernel for each does."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if not self.state[parameter]:
                    self.state[parameter].update(self._states(parameter))
                parameter.add_(parameter.grad, alpha=0)

    def _states(self, parameter: nn.Parameter) -> dict[str, Any]:
        small = self._bits == 32 or parameter.numel() < SMALLEST
        dtype = torch.float32 if small else torch.uint8
        device = "cpu" if self._paged and parameter.numel() >= PAGED else parameter.device
        made: dict[str, Any] = {
            f"state{number}": torch.zeros_like(parameter, dtype=dtype, device=device) for number in (1, 2)
        }
        if not small:
            if self._tables is None:
                self._tables = (_table(parameter), _table(parameter))
            for number, table in enumerate(self._tables, start=1):
                made[f"qmap{number}"] = table
                made[f"absmax{number}"] = torch.zeros(-(-parameter.numel() // BLOCK), device=parameter.device)
        return made


def pretended(own: Optimizer, states: str) -> Optimizer:
    """What takes the place of the recipe's AdamW where memory is estimated. Raises UsageError for another one."""
    bits, paged = _STATES[states]
    return BlockwiseAdamW(_groups(own, states), bits=bits, paged=paged)


def real(own: Optimizer, states: str, device: torch.device) -> Optimizer:
    """What takes the place of the recipe's AdamW where it is trained: bitsandbytes', with the same groups and rates.

    Raises UsageError for another optimizer, without bitsandbytes, and for paged states on a CPU.
    """
    groups, (bits, paged) = _groups(own, states), _STATES[states]
    if paged and device.type == "cpu":
        raise UsageError(
            f"optimizer_states={states}: pages are moved between a GPU and its host, and there is no GPU here",
            hint="optimizer_states=8bit" if bits == 8 else "optimizer_states=own",
        )
    extras.require(EXTRA, "bitsandbytes")
    import bitsandbytes

    made: Optimizer = bitsandbytes.optim.AdamW(groups, optim_bits=bits, is_paged=paged)
    return made


def is_bitsandbytes(optimizer: Optimizer) -> bool:
    """Whether it is one of bitsandbytes', or stands for one."""
    return isinstance(optimizer, BlockwiseAdamW) or type(optimizer).__module__.startswith("bitsandbytes")


def require_real(optimizer: Optimizer) -> None:
    """Raises UsageError for an optimizer that only shows what another would take."""
    if isinstance(optimizer, BlockwiseAdamW):
        raise UsageError(
            "this optimizer can be estimated, not trained with",
            hint="torch.optim.AdamW in the recipe's optimizer(), and optimizer_states=8bit",
        )


def share_tables(optimizer: Optimizer) -> None:
    """Have states share the tables of their 8 bits again, which loading has made one of for each: a checkpoint has
    what is shared once.
    """
    first: dict[tuple[str, torch.device], Tensor] = {}
    for state in optimizer.state.values():
        for name in ("qmap1", "qmap2"):
            if isinstance(table := state.get(name), Tensor):
                shared = first.setdefault((name, table.device), table)
                if torch.equal(shared, table):
                    state[name] = shared


def _groups(own: Optimizer, states: str) -> list[dict[str, Any]]:
    """The parameter groups of torch's AdamW, with what bitsandbytes' takes."""
    if type(own) is not torch.optim.AdamW or any(group["amsgrad"] or group["maximize"] for group in own.param_groups):
        raise UsageError(
            f"optimizer_states={states}: it is AdamW that bitsandbytes has them for, and the recipe has "
            f"{type(own).__name__}",
            hint="optimizer_states=own",
        )
    names = ("params", "lr", "betas", "eps", "weight_decay")
    return [{name: group[name] for name in names} for group in own.param_groups]


def _table(like: Tensor) -> Tensor:
    return torch.zeros(TABLE, device=like.device)
