"""The comparison of the replicas of a model, which must have the same bits on all ranks."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from shoestring.base.errors import RunError
from shoestring.training.checkpoint.divided import is_divided
from shoestring.training.engine.memory import retry_with_freed_memory
from shoestring.training.engine.parallel.ranks import Ranks

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MOST_ELEMENTS = 2**21
"""Of one sum: torch converts them to int64 first, in new memory."""


def require_equal(model: nn.Module, ranks: Ranks, update: int) -> None:
    """Raise RunError on all ranks if a weight or a buffer of the model differs between them.

    What is compared is a checksum of each tensor, which is computed on its device.
    """
    if ranks.size == 1:
        return
    tensors = {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if not is_divided(tensor)}
    if not tensors:
        return
    checksums = retry_with_freed_memory(
        lambda: _on_host([_checksum(tensor) for tensor in tensors.values()]), "comparing the weights of the GPUs"
    )
    rows = ranks.gather_tensor(checksums)
    for name, *values in zip(tensors, *rows, strict=True):
        rank = next((rank for rank, value in enumerate(values) if value != values[0]), None)
        if rank is not None:
            raise RunError(
                f"after update {update} the weights of GPU {rank} are not those of GPU 0: {name} differs",
                problems=["the ranks have computed different sums, or a loss depends on the process that computes it"],
                hint="the last checkpoint has equal weights: train again to continue from it; if this happens again, "
                "use one GPU (gpus=1), and check the machine's memory",
            )


def _on_host(scalars: Sequence[Tensor]) -> Tensor:
    """Return scalars on a GPU and on the host, where offloaded weights are, as one tensor; wait for the GPU once."""
    device = next((scalar.device for scalar in scalars if scalar.device.type != "cpu"), torch.device("cpu"))
    return torch.stack([scalar.to(device) for scalar in scalars]).cpu()


@torch.no_grad()
def _checksum(tensor: Tensor) -> Tensor:
    """Return the sum of the tensor's bits as integers, scalar int64."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    elements = tensor.detach().reshape(-1).view(_INTEGERS[tensor.element_size()])
    sums = [part.sum(dtype=torch.int64) for part in elements.split(_MOST_ELEMENTS)]
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum()
