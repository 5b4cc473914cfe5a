"""The tensors of a model at one time, to find out which were replaced or written to since."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn

_CONTAINERS = (dict, list, tuple, deque)
"""The types of attributes whose tensors are those of the module."""


class _Entry(NamedTuple):
    """A tensor that a model has, and what was true of it at that time."""

    tensor: Tensor
    address: int | None
    version: int | None


class ModelTensors:
    """The tensors that a model has at one time: parameters, buffers and those in other attributes of its modules, also
    in a list, tuple or dict there. Their addresses are part of a graph.
    """

    def __init__(self, model: nn.Module) -> None:
        self._by_name: dict[str, _Entry] = {}
        self._holders, self._keys, self._values = list[Any](), list[Any](), list[Any]()
        """Each tensor or container with tensors, and where it was: `holder[key]` was `value`."""
        for path, module in model.named_modules():
            self._add_attributes(path, vars(module))
        addressed = [(entry.tensor, entry.address) for entry in self._by_name.values() if entry.address is not None]
        self._addressed, self._addresses = [tensor for tensor, _ in addressed], [address for _, address in addressed]

    def _add_attributes(self, path: str, attributes: dict[str, Any]) -> None:
        for attribute, value in attributes.items():
            if isinstance(value, Tensor):
                self._add(f"{path}.{attribute}", attributes, attribute, value)
            elif isinstance(value, _CONTAINERS) and value:
                items = value.items() if isinstance(value, dict) else enumerate(value)
                tensors = [(key, item) for key, item in items if isinstance(item, Tensor)]
                # Parameters and buffers are in dicts of the module.
                is_own = attribute in ("_parameters", "_buffers")
                for key, tensor in tensors:
                    self._add(f"{path}.{key}" if is_own else f"{path}.{attribute}[{key!r}]", value, key, tensor)
                if tensors:
                    self._place(attributes, attribute, value)

    def _add(self, name: str, holder: Any, key: Any, tensor: Tensor) -> None:
        self._place(holder, key, tensor)
        self._by_name[name.removeprefix(".")] = _Entry(tensor, _address(tensor), _version(tensor))

    def _place(self, holder: Any, key: Any, value: Any) -> None:
        self._holders.append(holder)
        self._keys.append(key)
        self._values.append(value)

    def are_current(self) -> bool:
        """Return whether the model still has these tensors, at the same addresses.

        This is called for each microbatch, so that the loops over all tensors are those of C.
        """
        try:
            if not all(map(operator.is_, map(operator.getitem, self._holders, self._keys), self._values)):
                return False
        except LookupError:
            return False
        return [*map(Tensor.data_ptr, self._addressed)] == self._addresses

    def others_in(self, later: ModelTensors) -> Iterator[str]:
        """Return the names under which `later` has no tensor, another one, or the same one at another address."""
        for name, entry in self._by_name.items():
            other = later._by_name.get(name)
            if other is None or other.tensor is not entry.tensor or entry.address not in (None, other.address):
                yield name

    def written(self) -> list[Tensor]:
        """Return the tensors that were written to since."""
        return [entry.tensor for entry in self._by_name.values() if _version(entry.tensor) != entry.version]


def _address(tensor: Tensor) -> int | None:
    """Return the address of a tensor's memory; None for one without memory of its own, such as a sparse one."""
    try:
        return tensor.data_ptr()
    except (RuntimeError, ValueError):
        return None


def _version(tensor: Tensor) -> int | None:
    """Return how often torch has counted a write to the tensor; None if it does not count them."""
    return None if tensor.is_inference() else tensor._version
