"""Checksums of the values of tensors, computed on their devices, to find out whether they have changed or differ."""

from collections.abc import Sequence

import torch
from torch import Tensor

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_COLUMNS = 512
_ODD = -7046029254386353131
"""2**64 divided by the golden ratio, an odd number, as a signed integer: its multiples differ in all bits."""


def checksums(tensors: Sequence[Tensor]) -> list[int]:
    """Return the checksum of each tensor; a GPU is waited for once."""
    return on_host([checksum(tensor) for tensor in tensors]).tolist() if tensors else []


def on_host(scalars: Sequence[Tensor]) -> Tensor:
    """Return scalars on a GPU and on the host, where offloaded weights are, as one tensor; wait for the GPU once."""
    device = next((scalar.device for scalar in scalars if scalar.device.type != "cpu"), torch.device("cpu"))
    return torch.stack([scalar.to(device) for scalar in scalars]).cpu()


@torch.no_grad()
def checksum(tensor: Tensor) -> Tensor:
    """Return a checksum of the tensor's bits, scalar int64 on its device.

    The bits are read as integers of 64 bits, which torch sums without a copy in a wider type, in rows of 4 KiB. Another
    value changes the sum of its row, and another order of the rows their weighted sum.
    """
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    flat = (tensor if tensor.is_contiguous() else tensor.contiguous()).reshape(-1)
    per_word = 8 // flat.element_size()
    if flat.storage_offset() % per_word:
        flat = flat.clone()  # in aligned memory
    end = len(flat) - len(flat) % per_word
    words, tail = flat[:end].view(torch.int64), flat[end:].view(_INTEGERS[flat.element_size()])
    last_row = len(words) - len(words) % _COLUMNS
    rows = words[:last_row].view(-1, _COLUMNS)
    parts = [*([rows.sum(1)] if last_row else []), words[last_row:], tail.long()]
    return torch.stack([_weighted(part, _ODD + 2 * index) for index, part in enumerate(parts)]).sum()


def _weighted(values: Tensor, factor: int) -> Tensor:
    """Return the sum of the values, each with an odd weight of its own."""
    weights = (2 * torch.arange(len(values), device=values.device) + 1) * factor
    return (values * weights).sum()
