"""The tensors of a block that are streamed, and how a module is given others of the same kind.

Streamed are frozen parameters and large buffers that no module outside of the block uses. Everything else of a block
stays on the device: what is trained, small buffers, and what is tied or shared with other modules.

A value that a module holds has one or several *parts*, plain tensors: a 4-bit weight its packed values and its scales,
a tensor subclass the tensors that it wraps.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from shoestring.techniques import nf4, norms

LARGE_BUFFER = 1 << 20
"""The bytes from which on a buffer is streamed. Smaller ones, such as tables of positions, are cheaper to keep."""


class Place(NamedTuple):
    """Where a module holds a tensor."""

    module: nn.Module
    name: str
    is_parameter: bool

    @property
    def entries(self) -> dict[str, Any]:
        """The dictionary of the module that has the tensor."""
        entries: dict[str, Any] = self.module._parameters if self.is_parameter else self.module._buffers
        return entries


@dataclass(frozen=True)
class Streamed:
    """A streamed tensor: all its places in its block."""

    places: tuple[Place, ...]

    @property
    def value(self) -> Any:
        """What the block's modules hold."""
        place = self.places[0]
        return place.entries[place.name]

    def set(self, value: Any) -> None:
        """Let the modules hold another value."""
        for place in self.places:
            place.entries[place.name] = value


def streamed_tensors(model: nn.Module, blocks: Sequence[nn.Module]) -> list[list[Streamed]]:
    """Return the tensors of each of the `blocks` that are streamed with it.

    Call it before the model is moved, which may separate tensors that share memory.
    """
    uses = Counter(
        key for modules in _disjoint(model, blocks) for key in {_memory(value) for _, value in _tensors(modules)}
    )
    trained = {_memory(parameter) for parameter in model.parameters() if parameter.requires_grad}
    return [_of_block(block, uses, trained) for block in blocks]


def _of_block(block: nn.Module, uses: Counter[int], trained: set[int]) -> list[Streamed]:
    places: dict[int, list[Place]] = {}
    memory: dict[int, int] = {}
    for place, value in _tensors(block.modules()):
        if uses[_memory(value)] == 1 and _memory(value) not in trained and _is_constant(place, value):
            places.setdefault(id(value), []).append(place)
            memory[id(value)] = _memory(value)
    shared = Counter(memory.values())  # different views of the same memory stay together, on the device
    return [Streamed(tuple(of_value)) for key, of_value in places.items() if shared[memory[key]] == 1]


def _is_constant(place: Place, value: Tensor) -> bool:
    if place.is_parameter:
        return not value.requires_grad
    if isinstance(place.module, nf4.Nf4Linear):
        return place.name in nf4.SCALES
    return value.nbytes >= LARGE_BUFFER and not isinstance(place.module, norms.RUNNING)


def _disjoint(model: nn.Module, blocks: Sequence[nn.Module]) -> Iterator[list[nn.Module]]:
    """Yield the modules of each block, and those outside of all blocks."""
    in_blocks = [list(block.modules()) for block in blocks]
    inside = {module for modules in in_blocks for module in modules}
    yield from in_blocks
    yield [module for module in model.modules() if module not in inside]


def _tensors(modules: Any) -> Iterator[tuple[Place, Tensor]]:
    """Yield the parameters and buffers of modules, a tied one once for each name."""
    for module in modules:
        for is_parameter, entries in ((True, module._parameters), (False, module._buffers)):
            for name, value in entries.items():
                if value is not None:
                    yield Place(module, name, is_parameter), value


def _memory(value: Tensor) -> int:
    """Return a key that tensors with the same memory share."""
    if is_traceable_wrapper_subclass(value):
        return _memory(parts(value)[0])
    return int(value.untyped_storage()._cdata)


def can_be_replaced(value: Tensor) -> bool:
    """Return whether a module can be given another tensor in place of this one.

    Not if it is of a class that keeps more than `parts` knows, such as bitsandbytes' 8-bit weights, whose values its
    layers hold a second time.
    """
    is_known = type(value) in (Tensor, nn.Parameter) or isinstance(value, nn.Buffer)
    return is_known or is_traceable_wrapper_subclass(value) or hasattr(value, "quant_state")


def parts(value: Any) -> list[Tensor]:
    """Return the plain tensors that a parameter or buffer consists of, without those that 4-bit weights share: their
    tables, and the offset of their scales, which are a few bytes.
    """
    if is_traceable_wrapper_subclass(value):
        names, _ = value.__tensor_flatten__()
        return [part for name in names for part in parts(getattr(value, name))]
    return [value.data, *(getattr(owner, name) for owner, name in _scales(value))]


def with_parts(value: Any, tensors: Sequence[Tensor]) -> Any:
    """Return a copy of a parameter or buffer that consists of other tensors, in the order of `parts`."""
    if is_traceable_wrapper_subclass(value):
        names, context = value.__tensor_flatten__()
        left, inner = list(tensors), {}
        for name in names:
            part = getattr(value, name)
            count = len(parts(part))
            inner[name] = with_parts(part, left[:count])
            del left[:count]
        plain: Any = type(value).__tensor_unflatten__(inner, context, value.size(), value.stride())
        return nn.Parameter(plain, requires_grad=False) if isinstance(value, nn.Parameter) else plain
    if scales := _scales(value):
        packed: Any = copy.copy(value)
        packed.quant_state = copy.copy(value.quant_state)
        packed.quant_state.state2 = copy.copy(value.quant_state.state2)
        packed.data = tensors[0]
        for (owner, name), tensor in zip(_scales(packed), tensors[1 : len(scales) + 1], strict=True):
            setattr(owner, name, tensor)
        return packed
    return nn.Parameter(tensors[0], requires_grad=False) if isinstance(value, nn.Parameter) else tensors[0]


def set_parts(value: Any, tensors: Sequence[Tensor]) -> Any:
    """Let a parameter or buffer consist of other tensors, and return it, or a copy if it cannot be changed."""
    is_elsewhere = value.device != tensors[0].device and not _scales(value)
    if is_traceable_wrapper_subclass(value) or not isinstance(value, nn.Parameter) or is_elsewhere:
        return with_parts(value, tensors)
    value.data = tensors[0]
    for (owner, name), tensor in zip(_scales(value), tensors[1:], strict=True):
        setattr(owner, name, tensor)
    return value


def _scales(value: Any) -> list[tuple[Any, str]]:
    """Return the owner and name of the tensors of scales of bitsandbytes' 4-bit weights."""
    state = getattr(value, "quant_state", None)
    if state is None:
        return []
    return [(state, "absmax"), *([(state.state2, "absmax")] if state.nested else [])]
