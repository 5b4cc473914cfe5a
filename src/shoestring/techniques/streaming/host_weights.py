"""The streamed tensors of a block in one buffer in host memory, from which one copy fills a slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shoestring.base.errors import RunError
from shoestring.techniques.streaming.tensors import Streamed, parts, set_parts

ALIGNMENT = 256
"""The bytes by which tensors in a buffer are aligned. Kernels choose other instructions for less aligned tensors."""


@dataclass(frozen=True)
class Layout:
    """Where tensors are in a buffer."""

    offsets: tuple[int, ...]
    shapes: tuple[Tensor, ...]
    """Tensors of the same types, shapes and strides, without memory."""
    size: int

    @classmethod
    def of_tensors(cls, tensors: Sequence[Tensor]) -> Layout:
        """Return the layout of tensors one after the other."""
        offsets, size = [], 0
        for tensor in tensors:
            offsets.append(size)
            size += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        # The strides of an expanded tensor, or of a part of a larger one, would not fit into its bytes.
        shapes = tuple(torch.empty_like(tensor, device="meta") for tensor in tensors)
        return cls(tuple(offsets), shapes, size)

    def views(self, buffer: Tensor) -> list[Tensor]:
        """Return the tensors in a buffer of bytes. Changes of one of them are not counted as changes of the buffer."""
        return [
            buffer.data[offset : offset + shape.nbytes].view(shape.dtype).as_strided(shape.size(), shape.stride())
            for offset, shape in zip(self.offsets, self.shapes, strict=True)
        ]


class HostWeights:
    """The streamed tensors of a block, which its modules hold between its uses."""

    def __init__(self, tensors: Sequence[Streamed], allocate: Callable[[int], Tensor]) -> None:
        """Move `tensors` to the memory that `allocate` returns for a number of bytes, and free their own."""
        self._ranges: dict[Streamed, slice] = {}
        plain: list[Tensor] = []
        for streamed in tensors:
            own = parts(streamed.value)
            self._ranges[streamed] = slice(len(plain), len(plain) + len(own))
            plain += own
        self.layout = Layout.of_tensors(plain)
        self.buffer = allocate(self.layout.size)
        self._views = self.layout.views(self.buffer)
        del plain, own
        self._attach()

    def by_tensor(self, views: Sequence[Tensor]) -> list[tuple[Streamed, Sequence[Tensor]]]:
        """Return the streamed tensors, each with its parts among all views of a buffer."""
        return [(streamed, views[of_tensor]) for streamed, of_tensor in self._ranges.items()]

    def drop(self, streamed: Streamed) -> None:
        """Leave a tensor, which stays where it is, out from now on."""
        del self._ranges[streamed]
        self._stamp = self._current_stamp()

    def refresh(self) -> bool:
        """Copy tensors that the modules hold in place of those of the buffer into it, as after loading a checkpoint.

        Returns whether the buffer has changed since the last call. Changes through `.data` are not noticed.
        """
        if self._stamp == self._current_stamp():
            return False
        self._attach()
        return True

    @torch.no_grad()
    def _attach(self) -> None:
        storage = self.buffer.untyped_storage()._cdata
        for streamed, views in self.by_tensor(self._views):
            value = streamed.value
            own = parts(value)
            if all(part.untyped_storage()._cdata == storage for part in own):
                continue
            for part, view in zip(own, views, strict=True):
                if part.shape != view.shape or part.dtype != view.dtype:
                    name = streamed.places[0].name
                    raise RunError(
                        f"the frozen tensor {name!r} of a streamed block was {tuple(view.shape)} of {view.dtype} and "
                        f"is {tuple(part.shape)} of {part.dtype}",
                        hint="streamed_blocks=0, or change its type in model()",
                    )
                view.copy_(part)
            del own, part
            streamed.set(set_parts(value, views))
        self._stamp = self._current_stamp()

    def _current_stamp(self) -> list[Any]:
        """Return numbers that change if the modules hold other tensors, or if these are changed in place."""
        return [
            (id(value), value._version, *((id(part), part._version) for part in parts(value)[1:]))
            for value in (streamed.value for streamed in self._ranges)
        ]
