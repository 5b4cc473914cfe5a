"""What is known of the calls of identical blocks: arguments, results, gradients, and the calls of one pass."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shoestring.planning.trace.event_log import Position
from shoestring.planning.trace.recorder import is_simulated
from shoestring.planning.trace.templates import Form, Template
from shoestring.techniques import trees

PLAIN = (int, float, str, bool, type(None), torch.dtype, torch.device)
"""Types of arguments and results that are compared by value."""


@dataclass
class Arguments:
    """The arguments of a call: plain values, and weak references to tensors."""

    structure: Any
    leaves: list[Any]

    @classmethod
    def read(cls, args: Any, kwargs: Any) -> Arguments:
        leaves, structure = trees.flatten((args, kwargs))
        return cls(structure, [weakref.ref(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves])

    def differing(self, other: Arguments) -> list[int] | None:
        """Return the indices of the leaves that differ; None if the structures differ."""
        if self.structure != other.structure:
            return None
        pairs = enumerate(zip(self.leaves, other.leaves, strict=True))
        return [index for index, (a, b) in pairs if not _is_same_leaf(a, b)]

    def tensor(self, index: int) -> Tensor | None:
        """Return the leaf with this index if it is a tensor on the device."""
        leaf = self.leaves[index]
        tensor = leaf() if isinstance(leaf, weakref.ref) else None
        return tensor if tensor is not None and is_simulated(tensor) else None

    def are_supported(self, place: int) -> bool:
        """Return whether all are tensors or plain values, and none needs a gradient besides the one at `place`."""
        return all(
            isinstance(leaf, PLAIN)
            or (isinstance(leaf, weakref.ref) and (index == place or not _requires_grad(leaf())))
            for index, leaf in enumerate(self.leaves)
        )


def _requires_grad(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.requires_grad


def _is_same_leaf(a: Any, b: Any) -> bool:
    if isinstance(a, weakref.ref):
        return isinstance(b, weakref.ref) and a() is not None and a() is b()
    return type(a) is type(b) and isinstance(a, PLAIN) and bool(a == b)


@dataclass
class Output:
    """The result of a block: one tensor in a structure of containers."""

    structure: Any
    values: list[Any]
    """The leaves that are no tensors."""
    place: int
    offset: int
    """The number of its storage among the new ones."""
    form: Form
    requires_grad: bool

    def with_tensor(self, tensor: Tensor) -> Any:
        """Return the structure with `tensor`."""
        leaves = [*self.values[: self.place], tensor, *self.values[self.place :]]
        return trees.unflatten(leaves, self.structure)


@dataclass
class Gradients:
    """The gradients that a block's backward creates, with their storages by their number among the new ones."""

    incoming: Form
    input: tuple[int, Form] | None
    """None if it is the incoming gradient itself."""
    parameters: list[tuple[int, Form] | None]
    """None for a parameter whose gradient is not new."""
    are_none: list[bool]
    """Whether each parameter had no gradient before."""


@dataclass
class Call:
    """A call of a block, with the storages of its forward, and what backward needs."""

    index: int
    storages: range
    input_index: int | None = None
    input: Tensor | None = None
    """The input, if backward frees it."""
    start: Position | None = None
    """The beginning of backward."""
    incoming: tuple[int | None, Form] | None = None
    old_gradients: list[int | None] = field(default_factory=list)
    returned: int | None = None
    """The storage of the gradient that the backward of a folded block returns."""
    is_folded: bool = False
    is_complete: bool = False
    """Whether backward has run, or there is none."""


@dataclass
class Pass:
    """Calls of all blocks of a group, in their order, and the templates of their events."""

    microbatch: list[Pass]
    """The passes of the same microbatch, of which this is one."""
    can_fold: bool = True
    calls: list[Call] = field(default_factory=list)
    arguments: Arguments | None = None
    input_place: int = 0
    input_form: Any = None
    second_input: Any = None
    """A weak reference to the storage of the second block's input."""
    state: Any = None
    """What else the second block's events may depend on."""
    casts: list[tuple[int, int, Any]] = field(default_factory=list)
    """The casts that the second block adds to autocast's cache: the number of the parameter, the number of the storage,
    and a weak reference to the cast."""
    written_buffers: list[bool] = field(default_factory=list)
    """Whether the second block's forward writes to each of its buffers."""
    forward: Template | None = None
    output: Output | None = None
    backward: Template | None = None
    gradients: Gradients | None = None
