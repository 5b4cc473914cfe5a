"""The operators that AdaptDL adds to a training loop to monitor the gradient noise.

This follows `adaptdl/torch/gradient_noise_scale.py` of petuum/adaptdl: when a gradient becomes ready, its
preconditioned square is summed in fp64, and before the step all squares are summed again. A single process
compares with the gradients of the previous update. Its DistributedDataParallel copies gradients into buckets and back
even in a single process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


def monitor(model: nn.Module, optimizer: Optimizer, *, single_process: bool) -> None:
    """Add the monitoring operators to backward and to the optimizer's step."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    previous_gradients: list[Tensor] = []

    def make_hook(parameter: Tensor) -> Any:
        def hook(gradient: Tensor) -> None:
            _sum_squares(gradient.detach(), _preconditioner(optimizer, parameter))

        return hook

    def step(*_: Any) -> None:
        parameters_with_gradients = [
            (parameter, parameter.grad) for parameter in parameters if parameter.grad is not None
        ]
        if single_process:
            for _, gradient in parameters_with_gradients:
                gradient.copy_(gradient.clone())
        gradients = [gradient.div_(1).float() / 1.0 for _, gradient in parameters_with_gradients]
        scales = [_preconditioner(optimizer, parameter) for parameter, _ in parameters_with_gradients]
        _sum_all_squares(gradients, scales)
        if single_process:
            if previous_gradients:
                _sum_all_squares(previous_gradients, scales)
                pairs = zip(gradients, previous_gradients, strict=True)
                _sum_all_squares([(current + previous) / 2 for current, previous in pairs], scales)
            previous_gradients[:] = [gradient.clone() for gradient in gradients]

    for parameter in parameters:
        parameter.register_hook(make_hook(parameter))
    optimizer.register_step_pre_hook(step)


def _preconditioner(optimizer: Optimizer, parameter: Tensor) -> Tensor:
    """Return the root of the second moment for Adam, and ones for other optimizers."""
    import torch

    squares = optimizer.state[parameter].get("exp_avg_sq")
    if squares is None:
        return torch.ones_like(parameter)
    root: Tensor = squares.clone().sqrt() / 1.0
    return root.add_(1e-8)


def _sum_all_squares(gradients: list[Tensor], scales: list[Tensor]) -> None:
    for gradient, scale in zip(gradients, scales, strict=True):
        _sum_squares(gradient, scale)


def _sum_squares(gradient: Tensor, scale: Tensor) -> Tensor:
    import torch

    return (gradient / scale).pow(2).sum(dtype=torch.float64)
