"""Batches of any structure: their tensors, and copies of a batch with other tensors in their place.

A batch is a tensor, or a container of batches: a tuple, list or mapping, a dataclass or a class of attrs, or a type
that a library has registered in torch's trees. An object with a method `to` moves itself. An object of any other type
stays as it is, so it must not hold tensors.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from shoestring.base.errors import UsageError
from shoestring.techniques import trees

_PLAIN = (str, bytes, int, float, complex)
_DEPTH = 8
"""How deep in attributes of objects tensors are searched."""

_Path = tuple[Any, ...]
"""Empty for the whole batch, or the path of the container, the key, and whether the key is an attribute's name."""


class _Node(NamedTuple):
    """A container of a batch."""

    keys: Iterable[Any]
    children: Iterable[Any]
    rebuild: Callable[[list[Any]], Any]
    """Returns the same container with other children."""
    has_attributes: bool = False


def replaced(batch: Any, replace: Callable[[Tensor], Tensor], move: Callable[[Any], Any]) -> Any:
    """Return the batch with `replace(tensor)` in place of each tensor, and `move(value)` in place of each object with a
    method `to`.

    A dataclass is copied without a call of its `__init__`, so it may be frozen and have fields that are not arguments.

    Raises UsageError that names the type and the position of an object whose tensors cannot be replaced, such as a
    container that contains itself.
    """
    try:
        return _replaced(batch, replace, move, ())
    except RecursionError as error:
        # Only now, because a search for a cycle before each copy would take longer than the copy of a usual batch.
        path = _cycle(batch, (), {})
        if path is None:
            raise
        raise UsageError(
            f"{_position(path)} contains itself, so the batch cannot be copied to a device",
            hint="collate into containers that do not refer back to one that contains them",
        ) from error


def _replaced(batch: Any, replace: Callable[[Tensor], Tensor], move: Callable[[Any], Any], path: _Path) -> Any:
    if isinstance(batch, Tensor):
        return replace(batch)
    kind = type(batch)
    # Most batches are one of these; torch's own traversal, which supports all containers, takes ten times as long.
    if kind is tuple or kind is list:
        return kind([_replaced(item, replace, move, (path, index, False)) for index, item in enumerate(batch)])
    if kind is dict:
        return {key: _replaced(item, replace, move, (path, key, False)) for key, item in batch.items()}
    if batch is None or isinstance(batch, _PLAIN):
        return batch
    if moves_itself(batch):
        return move(batch)
    node = _node(batch)
    if node is None:
        if isinstance(batch, Iterator):
            raise UsageError(
                f"{_position(path)} is a {kind.__qualname__}, which can be read only once, so tensors in it cannot be "
                "moved to a device",
                hint="collate into a list, list(...), instead of an iterator",
            )
        if next(tensors(batch), None) is not None:
            raise UsageError(
                f"{_position(path)} is a {kind.__qualname__}, whose tensors cannot be moved to a device",
                hint="make it a dataclass, or give it a method to(device); or collate into tuples, lists or dicts",
            )
        return batch
    return node.rebuild(
        [
            _replaced(child, replace, move, (path, key, node.has_attributes))
            for key, child in zip(node.keys, node.children, strict=True)
        ]
    )


def _cycle(value: Any, path: _Path, containing: dict[int, _Path]) -> _Path | None:
    """Return the path of a container that contains itself; `containing` has those around `value`, by their identity."""
    if id(value) in containing:
        return containing[id(value)]
    node = None if isinstance(value, Tensor) or moves_itself(value) else _node(value)
    if node is None:
        return None
    inner = {**containing, id(value): path}
    cycles = (
        _cycle(child, (path, key, node.has_attributes), inner)
        for key, child in zip(node.keys, node.children, strict=True)
    )
    return next((cycle for cycle in cycles if cycle is not None), None)


def with_children(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a container with `change(child)` in place of each child, and any other object as it is."""
    node = _node(value)
    return node.rebuild([change(child) for child in node.children]) if node else value


def flatten(batch: Any) -> tuple[list[Tensor], tuple[Any, ...]]:
    """Return the tensors of a batch, in the order of `replaced`, and all else, in a form that can be compared.

    CUDA graphs need both. Raises UsageError for an object that moves itself, because its tensors are not known.
    """
    all_tensors: list[Tensor] = []
    structure: list[Any] = []

    def visit(value: Any) -> None:
        if isinstance(value, Tensor):
            all_tensors.append(value)
            structure.append(Tensor)
        elif moves_itself(value):
            raise UsageError(
                f"compile=graphs: the batch has a {type(value).__name__}, whose tensors a graph cannot replace",
                hint="collate into tuples, lists, dicts or dataclasses of tensors, or set compile=no",
            )
        elif node := _node(value):
            structure.append((type(value), tuple(node.keys)))
            for child in node.children:
                visit(child)
        else:
            structure.append(value)

    visit(batch)
    return all_tensors, tuple(structure)


def tensors(batch: Any) -> Iterator[Tensor]:
    """Yield every tensor of a batch once, also those in the attributes of objects."""
    visited: set[int] = set()

    def search(value: Any, depth: int) -> Iterator[Tensor]:
        if isinstance(value, Tensor):
            if id(value) not in visited:
                visited.add(id(value))
                yield value
            return
        if value is None or isinstance(value, (*_PLAIN, type)) or id(value) in visited:
            return
        visited.add(id(value))
        node = _node(value)
        children: Iterable[Any] = node.children if node else ()
        if node is None and depth < _DEPTH:
            children = value if isinstance(value, set | frozenset) else _attributes(value).values()
        for child in children:
            yield from search(child, depth + 1)

    return search(batch, 0)


def moves_itself(value: Any) -> bool:
    """Return whether the object has a method `to`, such as a batch of transformers or PyTorch Geometric."""
    return callable(getattr(value, "to", None)) and not isinstance(value, type | Tensor)


def _node(value: Any) -> _Node | None:
    """Return a container with its children; None for any other value."""
    kind: Any = type(value)
    if kind is tuple or kind is list:
        return _Node(range(len(value)), value, kind)
    if kind is dict:
        return _Node(value.keys(), value.values(), lambda items: dict(zip(value, items, strict=True)))
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return _Node(kind._fields, value, kind._make, has_attributes=True)
    if trees.is_registered(kind):
        children, structure = trees.flatten(value, is_leaf=lambda leaf: leaf is not value)
        return _Node(range(len(children)), children, lambda items: trees.unflatten(items, structure))
    if isinstance(value, Mapping):
        return _Node(value.keys(), value.values(), lambda items: _with_items(value, items))
    names = _attribute_names(value)
    if names is not None:
        children = [getattr(value, name) for name in names]
        return _Node(names, children, lambda items: _with_attributes(value, dict(zip(names, items, strict=True))), True)
    if isinstance(value, list):
        return _Node(range(len(value)), value, lambda items: _with_elements(value, items))
    return _Node(range(len(value)), value, kind) if isinstance(value, tuple) else None


def _attribute_names(value: Any) -> list[str] | None:
    """Return the names of the attributes that an instance of a dataclass or a class of attrs has set: its fields, and
    others in its dictionary. None for another object.
    """
    if isinstance(value, type):
        return None
    kind: Any = type(value)
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else getattr(kind, "__attrs_attrs__", None)
    if fields is None:
        return None
    names = [field.name for field in fields if hasattr(value, field.name)]
    return list(dict.fromkeys((*names, *getattr(value, "__dict__", ()))))


def _with_elements(value: list[Any], items: list[Any]) -> Any:
    """Return a copy of an instance of a subclass of list, whose `__init__` may have other arguments."""
    result = copy.copy(value)
    list.__setitem__(result, slice(None), items)
    return result


def _with_items(value: Any, items: list[Any]) -> Any:
    """Return a copy of a mapping with other values."""
    values = dict(zip(value, items, strict=True))
    if not isinstance(value, dict | UserDict):
        return type(value)(values)
    result = copy.copy(value)  # with the attributes that a subclass may have
    result.update(values)
    return result


def _with_attributes(value: Any, attributes: dict[str, Any]) -> Any:
    result = copy.copy(value)
    for name, attribute in attributes.items():
        object.__setattr__(result, name, attribute)
    return result


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, in its dictionary and in its slots."""
    slots = [name for kind in type(value).__mro__ for name in _slots(kind) if hasattr(value, name)]
    own = getattr(value, "__dict__", {})
    return {**(own if isinstance(own, dict) else {}), **{name: getattr(value, name) for name in slots}}


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _position(path: _Path) -> str:
    """Return a path as Python code, such as `batch["images"][0].masks`."""
    if not path:
        return "batch"
    parent, key, is_attribute = path
    return f"{_position(parent)}.{key}" if is_attribute else f"{_position(parent)}[{key!r}]"
