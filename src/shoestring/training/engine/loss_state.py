"""What a loss changes besides parameters: buffers, and values in the attributes of the objects that it uses."""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoestring.base.units import MIB
from shoestring.training.data.own_generators import LazyGenerators, OwnGenerators
from shoestring.training.data.reachable import walk
from shoestring.training.engine.buffers import BufferBackup

_MOST_BYTES = 128 * MIB
"""Of tensors beside the model's buffers, those that are copied."""
_VALUES = (int, float, complex, str, bool, type(None), Tensor, np.ndarray)


class LossState:
    """The state at construction of a model and of the objects that its loss uses.

    It consists of the model's buffers, and for the loss and the modules of the model the numbers, texts, tensors,
    arrays, lists and queues in attributes. Parameters do not belong to it.
    """

    def __init__(self, model: nn.Module, loss: Callable[..., Any]) -> None:
        self._buffers = BufferBackup(model, complete=True)
        self._buffers.save()
        self._users = {"loss": loss, "model": model}
        self._lazy = LazyGenerators()
        self._own = self._lazy.search(**self._users)
        self._generators = self._own.states()
        self._model = model
        self._buffer_copies = {name: buffer.clone() for name, buffer in model.named_buffers()}
        names = {id(buffer) for buffer in model.buffers()}
        self._copies: list[tuple[str, Any, Any]] = []
        self._attributes: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        budget = _MOST_BYTES
        for path, value in walk({"loss": loss, "model": model}):
            if isinstance(value, nn.Parameter) or id(value) in names:
                continue
            if isinstance(value, Tensor | np.ndarray):
                budget -= value.nbytes
                if budget >= 0 and (isinstance(value, np.ndarray) or value.layout == torch.strided):
                    self._copies.append((path, value, _copy(value)))
            elif isinstance(value, list | deque):
                self._copies.append((path, value, list(value)))
            elif not isinstance(value, type) and isinstance(attributes := getattr(value, "__dict__", None), dict):
                values = {name: item for name, item in attributes.items() if isinstance(item, _VALUES)}
                self._attributes.append((path, attributes, values))

    @property
    def generators(self) -> OwnGenerators:
        """The generators that the loss and the model hold."""
        return self._lazy.search(**self._users)

    def has_new_generators(self) -> bool:
        """Return after the first loss whether it has created generators, which were not seeded."""
        return self._lazy.has_new(**self._users)

    def changed(self) -> list[str]:
        """Return the paths of what has changed."""
        paths = [
            f"model.{name}"
            for name, buffer in self._model.named_buffers()
            if name not in self._buffer_copies or not _is_equal(buffer, self._buffer_copies[name])
        ]
        paths += [path for path, value, copy in self._copies if not _is_equal(value, copy)]
        for path, attributes, values in self._attributes:
            present = {name: item for name, item in attributes.items() if isinstance(item, _VALUES)}
            paths += [f"{path}.{name}" for name, item in present.items() if not _is_same(values.get(name, paths), item)]
        return paths

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the state, but not that of generators: what they draw next is not repeated."""
        for _, attributes, values in self._attributes:
            for name in [name for name, item in attributes.items() if isinstance(item, _VALUES) and name not in values]:
                del attributes[name]
            attributes.update(values)
        for _, value, copy in self._copies:
            if _is_equal(value, copy):
                continue
            if isinstance(value, Tensor):
                value.copy_(copy)
            elif isinstance(value, np.ndarray):
                value[...] = copy
            else:
                value.clear()
                value.extend(copy)
        self._buffers.restore()

    def restore_generators(self) -> None:
        """Restore the states of the generators that the loss and the model have held from the beginning."""
        self._own.restore(self._generators)


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value.copy()


def _is_equal(value: Any, copy: Any) -> bool:
    if isinstance(value, Tensor):
        return value.shape == copy.shape and bool(((value == copy) | ((value != value) & (copy != copy))).all())
    if isinstance(value, np.ndarray):
        return bool(value.shape == copy.shape and value.tobytes() == copy.tobytes())
    return len(value) == len(copy) and all(own is other for own, other in zip(value, copy, strict=True))


def _is_same(before: Any, after: Any) -> bool:
    """Return whether an attribute is what it was: the same object, or an equal number or text."""
    is_plain = not isinstance(before, Tensor | np.ndarray) and not isinstance(after, Tensor | np.ndarray)
    return before is after or (is_plain and type(before) is type(after) and (before == after or before != before))
