"""What is in host memory in a traced update: it is not in the record of the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from shoestring.planning.trace import simulated_device
from shoestring.planning.trace.record import Part
from shoestring.planning.trace.recorder import is_simulated
from shoestring.techniques import offload
from shoestring.training.engine.averaging import AveragedWeights


def bytes_by_part(model: nn.Module, optimizer: Any, averages: AveragedWeights | None) -> dict[Part, int]:
    """Return the bytes in host memory when an update is complete but for its step.

    Call it after a step of the `optimizer`, with those parameters registered in the model that the GPU has.
    """
    stepped = offload.stepped_parameters(optimizer)
    tensors: dict[Part, Iterable[Tensor]] = {
        "weights": [*model.parameters(), *stepped],
        "buffers": model.buffers(),
        "gradients": [parameter for parameter in stepped if parameter.requires_grad],
        "optimizer states": simulated_device.tensors(list(optimizer.state.values())),
        "averaged weights": averages.averages.values() if averages else (),
    }
    sizes = {part: _bytes_on_host(members) for part, members in tensors.items()}
    return {part: size for part, size in sizes.items() if size}


def _bytes_on_host(tensors: Iterable[Tensor]) -> int:
    return sum(
        tensor.nbytes for tensor in {id(tensor): tensor for tensor in tensors}.values() if not is_simulated(tensor)
    )
