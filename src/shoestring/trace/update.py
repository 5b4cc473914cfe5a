"""One update as the engine does it, on the pretend device, between marks of its phases."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from shoestring.recipe import build_optimizer, part
from shoestring.settings import Precision, Settings
from shoestring.trace import attention, autocast, pretend
from shoestring.trace.pretend import DEVICE
from shoestring.trace.record import Event, Storage
from shoestring.trace.recorder import Recorder

if TYPE_CHECKING:
    from torch.optim import Optimizer

FOLLOWED_MICROBATCHES = 2
"""The second finds gradients to add to; all later ones repeat it."""


def run(
    recorder: Recorder,
    recipe: Any,
    settings: Settings,
    *,
    accumulate: int,
    capability: tuple[int, int] | None,
    gpus: int = 1,  # noqa: ARG001
) -> tuple[tuple[Storage, ...], tuple[Event, ...]]:
    """Follow two updates of `recipe`, the first with one microbatch, on one of `gpus` of this compute capability.

    None for `capability` means a CPU. Raises whatever the recipe's code raises.
    """
    attention.CAPABILITY.set(capability)
    on_gpu = capability is not None
    assert settings.micro_batch is not None and settings.precision is not None
    precision = settings.precision
    model = pretend.build(recipe.model)
    batch = recipe.batch(settings.micro_batch)
    # A Python error in another thread's backward would end the process while it unwinds.
    with pretend.fake_mode(), recorder, torch.autograd.set_multithreading_enabled(False):
        recorder.mark("model", 0)
        pretend.move(model)
        recorder.label(model.parameters(), "weights")
        recorder.label(model.buffers(), "buffers")
        optimizer = build_optimizer(recipe, model)
        if on_gpu:
            _many_tensors_at_once(optimizer)
        scaler = _Scaler() if precision == "fp16" else None
        clip_norm = part(recipe, "clip_norm", None)
        for number, microbatches in enumerate((1, min(FOLLOWED_MICROBATCHES, accumulate))):
            for index in range(microbatches):
                recorder.mark("forward", number, index)
                _microbatch(recorder, recipe, model, batch, precision, scaler, 1 / microbatches, (number, index))
            recorder.mark("optimizer", number)
            parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
            if scaler:
                scaler.unscale(parameters)
            if clip_norm is not None:
                nn.utils.clip_grad_norm_(parameters, clip_norm, foreach=on_gpu)
            optimizer.step()
            recorder.label(pretend.tensors(list(optimizer.state.values())), "optimizer states")
            if scaler:
                scaler.update()
            del parameters
            optimizer.zero_grad(set_to_none=True)
        recorder.mark("end", 1)
        return recorder.record()


def _microbatch(
    recorder: Recorder,
    recipe: Any,
    model: nn.Module,
    batch: Any,
    precision: Precision,
    scaler: _Scaler | None,
    share: float,
    place: tuple[int, int],
) -> None:
    moved = pretend.batch_like(batch)
    recorder.label(pretend.tensors(moved), "batch")
    with autocast.region(precision):
        loss = recipe.loss(model, moved)
        if isinstance(loss, tuple):
            loss = loss[0] / loss[1]
        loss = loss * share
    if scaler:
        loss = scaler.scale(loss)
    recorder.mark("backward", *place)
    loss.backward()
    recorder.label((parameter.grad for parameter in model.parameters()), "gradients")


class _Scaler:
    """The tensors and operators of `torch.amp.GradScaler`, which itself asks the device for values."""

    def __init__(self) -> None:
        self._scale = torch.ones((), device=DEVICE)
        self._growth = torch.zeros((), dtype=torch.int32, device=DEVICE)

    def scale(self, loss: Tensor) -> Tensor:
        return loss * self._scale

    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        self._found = torch.zeros((), device=DEVICE)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, self._found, self._scale.reciprocal())

    def update(self) -> None:
        torch._amp_update_scale_(self._scale, self._growth, self._found, 2.0, 0.5, 2000)


def _many_tensors_at_once(optimizer: Optimizer) -> None:
    """Choose the optimizer's kernel as on CUDA: it looks at the parameters' type, which a fake one hides."""
    for group in optimizer.param_groups:
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True
