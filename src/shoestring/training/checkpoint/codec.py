"""Conversion of a training state to JSON and tensors, and back to the same Python types. Pickle is not used.

A value that JSON cannot represent is an object with a single `$` key: `{"$tensor": name}`, `{"$tuple": [...]}`,
`{"$map": [[key, value], ...]}` for dicts whose keys are not all plain strings, `{"$float": "nan"}`.
"""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from shoestring.base.errors import CheckpointError
from shoestring.training.checkpoint.divided import own


def pack(state: Any) -> tuple[Any, dict[str, Tensor]]:
    """Return `state`, a tree of dicts, lists, tuples, numbers, strings and tensors, as (JSON, tensors by name).

    The tensors are those of `state`, not copies; a tensor that occurs more than once (tied weights) is stored once.
    Its name is the path of its first occurrence: `state.0.exp_avg`. The JSON shares no object with `state`.

    Raises CheckpointError with the path of a value of any other type.
    """
    packer = _Packer()
    return packer.pack(state, ()), packer.tensors


def unpack(skeleton: Any, tensors: Mapping[str, Any]) -> Any:
    """Return the state that `pack` converted to `skeleton` and `tensors`.

    Raises CheckpointError if the skeleton is malformed or names a missing tensor.
    """
    try:
        return _unpack(skeleton, tensors)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"the state is malformed: {error}") from error


def _unpack(skeleton: Any, tensors: Mapping[str, Any]) -> Any:
    if isinstance(skeleton, list):
        return [_unpack(value, tensors) for value in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    kind = next(iter(skeleton), "") if len(skeleton) == 1 else ""
    if not kind.startswith("$"):
        return {key: _unpack(value, tensors) for key, value in skeleton.items()}
    value = skeleton[kind]
    if kind == "$tensor" and value in tensors:
        return tensors[value]
    if kind == "$tuple":
        return tuple(_unpack(item, tensors) for item in value)
    if kind == "$map":
        return {_unpack(key, tensors): _unpack(item, tensors) for key, item in value}
    if kind == "$float":
        return float(value)
    raise CheckpointError(f"the state contains {skeleton}, which is of an unknown kind or names a missing tensor")


class _Packer:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}

    def pack(self, value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, Tensor):
            return {"$tensor": self._store(value, path)}
        if isinstance(value, float):
            return value if math.isfinite(value) else {"$float": str(value)}
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, tuple):
            return {"$tuple": self._pack_items(value, path)}
        if isinstance(value, list):
            return self._pack_items(value, path)
        if isinstance(value, dict):
            if all(isinstance(key, str) and not key.startswith("$") for key in value):
                return {key: self.pack(item, (*path, key)) for key, item in value.items()}
            return {"$map": [[self.pack(key, path), self.pack(item, (*path, str(key)))] for key, item in value.items()]}
        raise CheckpointError(
            f"the state has a {type(value).__name__} at {'.'.join(path) or 'its root'}, which cannot be saved",
            hint="a state may contain dicts, lists, tuples, numbers, strings and tensors",
        )

    def _pack_items(self, values: Any, path: tuple[str, ...]) -> list[Any]:
        return [self.pack(item, (*path, str(index))) for index, item in enumerate(values)]

    def _store(self, tensor: Tensor, path: tuple[str, ...]) -> str:
        rows = own(tensor)
        identity = (
            rows.device, rows.dtype, rows.untyped_storage().data_ptr(),
            rows.storage_offset(), tuple(rows.shape), rows.stride(), tuple(tensor.shape),
        )  # fmt: skip
        if rows.numel() and identity in self._names:
            return self._names[identity]
        name = ".".join(path) or "value"
        while name in self.tensors:
            name += "'"
        self.tensors[name] = tensor.detach()
        self._names[identity] = name
        return name
