"""A module's buffers by name.

They are read and put where torch keeps them (`Module._buffers`, the same from torch 2.6 to 2.13): the public way
takes three times as long to read one and forty times to put one, which a model of fifty norms would feel in each
update. It is taken where torch keeps them elsewhere.
"""

from collections.abc import Mapping

from torch import Tensor, nn


def buffers(module: nn.Module) -> Mapping[str, Tensor | None]:
    """The module's own, without those of the modules in it."""
    slots = _slots(module)
    return dict(module.named_buffers(recurse=False, remove_duplicate=False)) if slots is None else slots


def put(module: nn.Module, name: str, buffer: Tensor) -> None:
    """Have `buffer` be the module's buffer `name`, which it has already."""
    slots = _slots(module)
    if slots is None:
        setattr(module, name, buffer)
    else:
        slots[name] = buffer


def _slots(module: nn.Module) -> dict[str, Tensor | None] | None:
    slots: dict[str, Tensor | None] | None = getattr(module, "_buffers", None)
    return slots
