"""AdamW with the states of bitsandbytes: the real optimizer for training, and a placeholder for estimates.

The layout is that of bitsandbytes 0.45 (`bitsandbytes/optim/optimizer.py`: `Optimizer8bit`, `Optimizer2State`). A
parameter of 4096 values or more has two states of one byte a value, each with an fp32 scale for every 256 values, and
all states share two fp32 tables of 256 entries; a smaller parameter has fp32 states. A step updates one tensor at a
time, in place, without temporaries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shoestring.base.errors import UsageError
from shoestring.base.packages import requirements

EXTRA = "bitsandbytes"

_STATES = {"8bit": (8, False), "paged": (32, True), "paged_8bit": (8, True)}
"""The bits of a state's values and whether large states are paged, by the value of the option `optimizer_states`."""

SMALLEST = 4096
"""The minimum number of values of a parameter with 8-bit states (`min_8bit_size`)."""
BLOCK = 256
"""The number of values that share a scale (`blocksize` of `Optimizer2State.init_state`)."""
PAGED = 100_000
"""The minimum number of values of a paged state in CUDA's managed memory (`get_state_buffer`). It takes no bytes of the
device's own allocator: the driver moves pages to the device when they are accessed, and away when memory is short."""
TABLE = 256


class BlockwiseAdamW(Optimizer):
    """AdamW's states in the layout of bitsandbytes, for estimates. Its step changes no weight, so it cannot train."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, *, bits: int = 8, paged: bool = False) -> None:
        """`bits`: 8 or 32 for each value of a state; `paged`: whether large states are paged."""
        super().__init__(params, {"lr": lr})
        self._bits, self._paged = bits, paged
        self._tables: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Create missing states, and write each weight once, as bitsandbytes' kernel does."""
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
        states: dict[str, Any] = {
            f"state{number}": torch.zeros_like(parameter, dtype=dtype, device=device) for number in (1, 2)
        }
        if not small:
            if self._tables is None:
                self._tables = (_table(parameter), _table(parameter))
            for number, table in enumerate(self._tables, start=1):
                states[f"qmap{number}"] = table
                states[f"absmax{number}"] = torch.zeros(-(-parameter.numel() // BLOCK), device=parameter.device)
        return states


def placeholder_optimizer(own: Optimizer, states: str) -> Optimizer:
    """Return the replacement of the recipe's AdamW for estimates. Raises UsageError for another optimizer."""
    bits, paged = _STATES[states]
    return BlockwiseAdamW(_groups(own, states), bits=bits, paged=paged)


def real_optimizer(own: Optimizer, states: str, device: torch.device) -> Optimizer:
    """Return bitsandbytes' replacement of the recipe's AdamW for training, with the same groups and rates.

    Raises UsageError for another optimizer, if bitsandbytes is not installed, and for paged states on a CPU.
    """
    groups, (bits, paged) = _groups(own, states), _STATES[states]
    if paged and device.type == "cpu":
        raise UsageError(
            f"optimizer_states={states}: paged states move between GPU and host memory, but training runs on the CPU",
            hint="optimizer_states=8bit" if bits == 8 else "optimizer_states=own",
        )
    requirements.require(EXTRA, "bitsandbytes")
    import bitsandbytes

    optimizer: Optimizer = bitsandbytes.optim.AdamW(groups, optim_bits=bits, is_paged=paged)
    return optimizer


def is_bitsandbytes(optimizer: Optimizer) -> bool:
    """Return whether the optimizer is one of bitsandbytes', or a placeholder for one."""
    return isinstance(optimizer, BlockwiseAdamW) or type(optimizer).__module__.startswith("bitsandbytes")


def require_real(optimizer: Optimizer) -> None:
    """Raise UsageError for a placeholder, which cannot train."""
    if isinstance(optimizer, BlockwiseAdamW):
        raise UsageError(
            "this optimizer can be estimated, but not used for training",
            hint="return torch.optim.AdamW from the recipe's optimizer(), and set optimizer_states=8bit",
        )


def load_states(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Load a state dict into any optimizer, with bitsandbytes' states where its step creates them."""
    if getattr(optimizer, "is_paged", False):
        _load_paged(optimizer, saved)
    else:
        optimizer.load_state_dict(saved)
    _share_tables(optimizer)


def _load_paged(optimizer: Any, saved: dict[str, Any]) -> None:
    """Load a state dict, large states into pages: `load_state_dict` would move them to the device, for good."""
    pages = {
        (parameter, name): value
        for parameter, state in optimizer.state.items()
        for name, value in state.items()
        if getattr(value, "is_paged", False)
    }
    optimizer.load_state_dict(saved, move_to_device=False)
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if not isinstance(value, Tensor):
                continue
            if name in ("state1", "state2") and parameter.numel() >= PAGED:
                page = pages.get((parameter, name))
                state[name] = optimizer.get_state_buffer(parameter, dtype=value.dtype) if page is None else page
                state[name].copy_(value)
            else:
                state[name] = value.to(parameter.device)


def _share_tables(optimizer: Optimizer) -> None:
    """Make equal quantization tables shared again after loading, which copies the table into each state: a checkpoint
    stores a shared tensor once.
    """
    first: dict[tuple[str, torch.device], Tensor] = {}
    for state in optimizer.state.values():
        for name in ("qmap1", "qmap2"):
            if isinstance(table := state.get(name), Tensor):
                shared = first.setdefault((name, table.device), table)
                if torch.equal(shared, table):
                    state[name] = shared


def _groups(own: Optimizer, states: str) -> list[dict[str, Any]]:
    """Return the parameter groups of torch's AdamW with the options that bitsandbytes' AdamW accepts."""
    if type(own) is not torch.optim.AdamW or any(group["amsgrad"] or group["maximize"] for group in own.param_groups):
        raise UsageError(
            f"optimizer_states={states}: bitsandbytes' states need AdamW without amsgrad or maximize, but the recipe "
            f"has {type(own).__name__}",
            hint="optimizer_states=own",
        )
    names = ("params", "lr", "betas", "eps", "weight_decay")
    return [{name: group[name] for name in names} for group in own.param_groups]


def _table(parameter: Tensor) -> Tensor:
    return torch.zeros(TABLE, device=parameter.device)
