"""What AdaptDL does to a training loop in order to watch the gradients' noise, operator by operator.

After `adaptdl/torch/gradient_noise_scale.py` of petuum/adaptdl: as each gradient becomes ready its preconditioned
square is summed in fp64, and before the step all of that once more; alone, a process compares with the update before.
Its DistributedDataParallel copies gradients into buckets and back also where it is alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


def watch(model: nn.Module, optimizer: Optimizer, *, alone: bool) -> None:
    """Have backward and the optimizer's step do the work of watching."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    before: list[Tensor] = []

    def ready(parameter: Tensor) -> Any:
        def hook(gradient: Tensor) -> None:
            _squared(gradient.detach(), _preconditioner(optimizer, parameter))

        return hook

    def step(*_: Any) -> None:
        graded = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
        if alone:
            for _, gradient in graded:
                gradient.copy_(gradient.clone())
        gradients = [gradient.div_(1).float() / 1.0 for _, gradient in graded]
        scales = [_preconditioner(optimizer, parameter) for parameter, _ in graded]
        _sums(gradients, scales)
        if alone:
            if before:
                _sums(before, scales)
                _sums([(one + two) / 2 for one, two in zip(gradients, before, strict=True)], scales)
            before[:] = [gradient.clone() for gradient in gradients]

    for trained in parameters:
        trained.register_hook(ready(trained))
    optimizer.register_step_pre_hook(step)


def _preconditioner(optimizer: Optimizer, parameter: Tensor) -> Tensor:
    """Of Adam the root of its second moment; of the others ones."""
    import torch

    squares = optimizer.state[parameter].get("exp_avg_sq")
    if squares is None:
        return torch.ones_like(parameter)
    root: Tensor = squares.clone().sqrt() / 1.0
    return root.add_(1e-8)


def _sums(gradients: list[Tensor], scales: list[Tensor]) -> None:
    for gradient, scale in zip(gradients, scales, strict=True):
        _squared(gradient, scale)


def _squared(gradient: Tensor, scale: Tensor) -> Tensor:
    import torch

    return (gradient / scale).pow(2).sum(dtype=torch.float64)
