"""Updates whose loss, gradient or weights are not finite: detecting them, and the error that names their samples."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from shoestring.base import shell
from shoestring.base.errors import RunError
from shoestring.base.system_errors import reason
from shoestring.training.checkpoint.divided import own
from shoestring.training.checkpoint.files import write_json
from shoestring.training.data.order import DataOrder
from shoestring.training.engine import foreach
from shoestring.training.request import SessionRequest


def non_finite_error(
    request: SessionRequest, *, update: int, quantity: str, value: float, last_good: str, order: DataOrder | None
) -> RunError:
    """Return the error for the non-finite `quantity` of update number `update` (from 1).

    `last_good` is the name of the last good checkpoint. If the `order` is known, `failed/update-N.json` gets the
    update's samples (indices into the training part) and that checkpoint: a session that resumes from it reproduces the
    update, since sample order and random numbers are functions of the seed and the update's number.
    """
    problems = [f"the last good checkpoint is {last_good}"]
    hint = "lower the learning rate, clip gradients, or train in fp32"
    if order:
        path = request.run.failed_update(update)
        command = shell.join(["shoestring", "replay", request.run.path, "--update", str(update)])
        facts: dict[str, Any] = {
            "update": update,
            "what": quantity,
            "value": str(value),
            "samples": list(order.indices(update - 1)),
            "checkpoint": last_good,
            "epoch": order.place(update - 1)[0] + 1,
            "seed": order.seed,
            "precision": request.settings.precision,
            "replay": command,
        }
        try:
            path.parent.mkdir(exist_ok=True)
            write_json(path, facts)
            problems.append(f"the update's samples are in {path}")
        except OSError as error:
            samples = ", ".join(map(str, facts["samples"]))
            problems.append(f"the update's samples, which could not be written to {path} ({reason(error)}): {samples}")
        hint = f"{command} shows them and what they lead to; if they are valid, {hint}"
    return RunError(f"the {quantity} of update {update} is {value}", problems=problems, hint=hint)


def weights_are_finite(model: nn.Module) -> bool:
    """Return whether every trained weight is finite."""
    return all_finite([parameter.detach() for parameter in model.parameters() if parameter.requires_grad])


def trained_parameter_names(model: nn.Module) -> frozenset[str]:
    """Return the names of the trained parameters in the model's state; a tied parameter has several names."""
    return frozenset(
        name for name, parameter in model.named_parameters(remove_duplicate=False) if parameter.requires_grad
    )


def all_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """Return whether every floating-point value is finite, with a single synchronization of the device."""
    floating_point = [own(tensor) for tensor in tensors if tensor.is_floating_point() and own(tensor).numel()]
    if not floating_point:
        return True
    # The 2-norm is fifteen times as fast on a CPU, but squares of large weights may overflow; the maximum cannot.
    return _norms_are_finite(foreach.norms(floating_point, 2)) or _norms_are_finite(
        foreach.norms(floating_point, math.inf)
    )


def _norms_are_finite(norms: Sequence[torch.Tensor]) -> bool:
    return bool(torch.isfinite(torch.stack([norm.float().to(norms[0].device) for norm in norms])).all())
