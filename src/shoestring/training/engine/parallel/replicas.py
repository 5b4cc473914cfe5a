"""The comparison of the replicas of a model, which must have the same bits on all ranks."""

from torch import nn

from shoestring.base.errors import RunError
from shoestring.training.checkpoint.checksums import checksum, on_host
from shoestring.training.checkpoint.divided import is_divided
from shoestring.training.engine.memory import retry_with_freed_memory
from shoestring.training.engine.parallel.ranks import Ranks


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
        lambda: on_host([checksum(tensor) for tensor in tensors.values()]), "comparing the weights of the GPUs"
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
