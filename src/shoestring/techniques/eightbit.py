"""AdamW with bitsandbytes' memory, to estimate with: what its 8-bit and its paged versions store, and nothing more.

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

from shoestring.errors import QuestionError

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

    def __init__(self, params: Iterable[nn.Parameter], lr: float = 1e-3, *, bits: int = 8, paged: bool = False) -> None:
        """`bits`: 8 or 32 for each value of a state; `paged`: whether large states may be swapped out."""
        super().__init__(params, {"lr": lr})
        self._bits, self._paged = bits, paged
        self._tables: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Make the states that are not there yet."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not self.state[parameter]:
                    self.state[parameter].update(self._states(parameter))

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


def require_real(optimizer: Optimizer) -> None:
    """Raises QuestionError for an optimizer that only shows what another would take."""
    if isinstance(optimizer, BlockwiseAdamW):
        raise QuestionError(
            "8-bit and paged AdamW can be estimated, not trained with yet",
            hint="an optimizer of torch's, or bitsandbytes' own in the recipe's optimizer()",
        )


def _table(like: Tensor) -> Tensor:
    return torch.zeros(TABLE, device=like.device)
