"""Random numbers: whether a model draws any, and those on the host that decide what it runs, as LayerDrop skips layers.

Fake tensors have no values, so torch refuses a condition on such a number. Here each draw from [0, 1) is the largest
number below 1, with which LayerDrop skips no layer. A run may have an update like that, so its memory has to suffice
for it; where smaller numbers skip something, no update needs more.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils.weak import WeakTensorKeyDictionary

from shoestring.planning.trace import bounds

_ATEN: Any = torch.ops.aten
_DRAWS = (_ATEN.rand.default, _ATEN.rand.generator, _ATEN.rand_like.default)
_COMPARISONS = (_ATEN.lt.Scalar, _ATEN.le.Scalar, _ATEN.gt.Scalar, _ATEN.ge.Scalar)
_RATES = ("dropout_p", "dropout")
"""The arguments with which operators draw random numbers only if they are not 0."""
_READ = _ATEN._local_scalar_dense.default
"""The operator behind `.item()` and conditions."""


def draws_random(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether an operator draws random numbers, as far as it declares that or has a rate of dropout."""
    is_seeded, rate_position = _declared(func)
    if rate_position is None:
        return is_seeded
    name, position = rate_position
    return bool(args[position] if position < len(args) else kwargs.get(name, 0.0))


@lru_cache(maxsize=4096)
def _declared(func: Any) -> tuple[bool, tuple[str, int] | None]:
    """Return whether an operator declares that it draws, and the name and position of its rate of dropout."""
    names = [argument.name for argument in func._schema.arguments]
    rate = next(((name, names.index(name)) for name in _RATES if name in names), None)
    return torch.Tag.nondeterministic_seeded in func.tags, rate


class Draws:
    """Gives the numbers that are drawn on the host a value, and notes where the recipe's code reads them."""

    def __init__(self) -> None:
        self._drawn: Any = WeakTensorKeyDictionary()
        """The numbers drawn and the known values computed from them, with whether each is the number itself."""
        self._places: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """A note on each place where the recipe's code reads a random number."""
        return tuple(
            f"what runs at {place} depends on a random number, and was traced with the largest: LayerDrop, for example,"
            " skips no layer"
            for place in self._places
        )

    def observe(self, func: Any, args: tuple[Any, ...], result: Any) -> Any:
        """Return the result of an operator on fake tensors, with its value if it is one number drawn on the host."""
        if func in _DRAWS:
            is_number = result.device.type == "cpu" and result.numel() == 1 and result.is_floating_point()
            return self._largest_number(result) if is_number else result
        if self._drawn and any(isinstance(arg, Tensor) and arg in self._drawn for arg in args):
            if func is _READ:
                self._places[bounds.location()] = None
            elif getattr(result, "constant", None) is not None and not self._is_certain(func, args):
                self._drawn.setdefault(result, False)
        return result

    def _largest_number(self, draw: FakeTensor) -> Tensor:
        """Return the largest number of the type of `draw` that `torch.rand` returns, with a value known to torch."""
        largest = 1 - torch.finfo(draw.dtype).eps / 2
        with unset_fake_temporarily():
            value = torch.full(draw.shape, largest, dtype=draw.dtype, device="cpu")
        # The fake mode keeps the value of a constant, as of what `torch.tensor` creates on the CPU, and computes with
        # it. What `torch.tensor` creates in this place has no value before torch 2.11.
        number = draw.fake_mode.fake_tensor_converter.from_real_tensor(draw.fake_mode, value, make_constant=True)
        self._drawn[number] = True
        return number

    def _is_certain(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Return whether a comparison has the same result for all numbers, as LayerDrop's for a probability of 0.

        The number 0 itself is disregarded: it is hardly ever drawn.
        """
        return func in _COMPARISONS and self._drawn.get(args[0], False) and not 0 < args[1] < 1
