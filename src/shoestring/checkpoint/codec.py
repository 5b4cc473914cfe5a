"""A training state as JSON and tensors: no pickle, and back in the same Python types.

What JSON cannot say is an object with a single `$` key: `{"$tensor": name}`, `{"$tuple": [...]}`, `{"$map": [[key,
value], ...]}` for dicts whose keys are not all plain texts, `{"$float": "nan"}`.
"""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from shoestring.errors import CheckpointError


def pack(state: Any) -> tuple[Any, dict[str, Tensor]]:
    """`state`, a tree of dicts, lists, tuples, numbers, texts and tensors, as (JSON, tensors by name).

    Tensors are the ones in `state`, not copies; one that stands at several places (tied weights) is there once. Names
    follow the place: `state.0.exp_avg`. The JSON shares nothing with `state`.

    Raises CheckpointError naming the place of anything else.
    """
    packer = _Packer()
    return packer.pack(state, ()), packer.tensors


def unpack(skeleton: Any, tensors: Mapping[str, Any]) -> Any:
    """The state that `pack` was given.

    Raises CheckpointError where the skeleton names a tensor that is not there or is malformed.
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
    raise CheckpointError(f"the state has {skeleton} in it, which stands for nothing that was saved")


class _Packer:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}

    def pack(self, value: Any, place: tuple[str, ...]) -> Any:
        if isinstance(value, Tensor):
            return {"$tensor": self._store(value, place)}
        if isinstance(value, float):
            return value if math.isfinite(value) else {"$float": str(value)}
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, tuple):
            return {"$tuple": self._items(value, place)}
        if isinstance(value, list):
            return self._items(value, place)
        if isinstance(value, dict):
            if all(isinstance(key, str) and not key.startswith("$") for key in value):
                return {key: self.pack(item, (*place, key)) for key, item in value.items()}
            return {
                "$map": [[self.pack(key, place), self.pack(item, (*place, str(key)))] for key, item in value.items()]
            }
        raise CheckpointError(
            f"the state has a {type(value).__name__} at {'.'.join(place) or 'its root'}, which cannot be saved",
            hint="a state is made of dicts, lists, tuples, numbers, texts and tensors",
        )

    def _items(self, values: Any, place: tuple[str, ...]) -> list[Any]:
        return [self.pack(item, (*place, str(number))) for number, item in enumerate(values)]

    def _store(self, tensor: Tensor, place: tuple[str, ...]) -> str:
        same = (
            tensor.device, tensor.dtype, tensor.untyped_storage().data_ptr(),
            tensor.storage_offset(), tuple(tensor.shape), tensor.stride(),
        )  # fmt: skip
        if tensor.numel() and same in self._names:
            return self._names[same]
        name = ".".join(place) or "value"
        while name in self.tensors:
            name += "'"
        self.tensors[name] = tensor.detach()
        self._names[same] = name
        return name
