"""An update whose numbers are not finite: what to keep of it, and how to tell."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from shoestring.checkpoint.files import write_json
from shoestring.data.order import DataOrder
from shoestring.engine import foreach
from shoestring.errors import RunError
from shoestring.train.request import SessionRequest


def not_finite(
    request: SessionRequest, *, update: int, what: str, value: float, good: str, order: DataOrder | None
) -> RunError:
    """The error for the `what` of update number `update` (from 1); `good` is the name of the last good checkpoint.

    The update's samples (indices into the training part), if its `order` is known, go to `failed/update-N.json`, with
    the checkpoint from which the same session leads there again: sample order and random numbers are functions of the
    seed and the update.
    """
    problems = [f"the last good checkpoint is {good}"]
    hint = "lower the learning rate, clip gradients, or train in fp32"
    if order:
        path = request.run.failed_update(update)
        path.parent.mkdir(exist_ok=True)
        facts = {
            "update": update,
            "what": what,
            "value": str(value),
            "samples": list(order.indices(update - 1)),
            "checkpoint": good,
            "epoch": order.place(update - 1)[0] + 1,
            "seed": order.seed,
            "precision": request.settings.precision,
        }
        write_json(path, facts)
        problems.append(f"the update's samples are in {path}")
        hint = f"look at these samples; else {hint}"
    return RunError(f"the {what} of update {update} is {value}", problems=problems, hint=hint)


def weights_finite(model: nn.Module) -> bool:
    """Whether every weight that is trained is a finite number."""
    return finite([each.detach() for each in model.parameters() if each.requires_grad])


def trained_names(model: nn.Module) -> frozenset[str]:
    """The names, in the model's state, of the weights that are trained; one that is tied has several."""
    return frozenset(name for name, each in model.named_parameters(remove_duplicate=False) if each.requires_grad)


def finite(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether every floating-point number of `tensors` is finite, in one pass and with one look at the device."""
    numbers = [each for each in tensors if each.is_floating_point()]
    if not numbers:
        return True
    # The norm is fifteen times as fast on a CPU, but the squares of large weights may overflow; the largest cannot.
    return _finite(foreach.norms(numbers, 2)) or _finite(foreach.norms(numbers, math.inf))


def _finite(norms: Sequence[torch.Tensor]) -> bool:
    return bool(torch.isfinite(torch.stack([each.float().to(norms[0].device) for each in norms])).all())
