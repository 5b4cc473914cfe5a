"""An update whose numbers are not finite: what to keep of it, and how to tell."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from shoestring.checkpoint.files import write_json
from shoestring.errors import RunError
from shoestring.session.directory import RunDirectory


def not_finite(
    run: RunDirectory, *, update: int, what: str, value: float, samples: Sequence[int], good: str, facts: dict[str, Any]
) -> RunError:
    """The error for the `what` of update number `update` (from 1), with `samples` (indices into the training part).

    They go to `failed/update-N.json` with `facts` (JSON) and the name of the last `good` checkpoint, from which the
    same session leads there again: sample order and random numbers are functions of the seed and the update.
    """
    path = run.path / "failed" / f"update-{update}.json"
    path.parent.mkdir(exist_ok=True)
    kept = {"update": update, "what": what, "value": str(value), "samples": list(samples), "checkpoint": good, **facts}
    write_json(path, kept)
    return RunError(
        f"the {what} of update {update} is {value}",
        problems=[f"the last good checkpoint is {good}", f"the update's samples are in {path}"],
        hint="look at these samples; else lower the learning rate, clip gradients, or train in fp32",
    )


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
    return _finite(torch._foreach_norm(numbers, 2)) or _finite(torch._foreach_norm(numbers, math.inf))


def _finite(norms: Sequence[torch.Tensor]) -> bool:
    return bool(torch.isfinite(torch.stack([each.float().to(norms[0].device) for each in norms])).all())
