"""One update as the engine does it, on the pretend device, between marks of its phases."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.recipe.options import LoadedRecipe
from shoestring.settings import Precision, Settings
from shoestring.techniques import adapt, checkpointing, kernels, offload
from shoestring.trace import attention, autocast, hosted, pretend, rollout, sharding, values
from shoestring.trace.pretend import DEVICE
from shoestring.trace.record import Event, Storage
from shoestring.trace.recorder import Recorder
from shoestring.trace.single_device import SingleDevice

FOLLOWED_MICROBATCHES = 2
"""The second finds gradients to add to; all later ones repeat it."""


def run(
    recorder: Recorder,
    loaded: LoadedRecipe,
    settings: Settings,
    *,
    accumulate: int,
    capability: tuple[int, int] | None,
    gpus: int = 1,
) -> tuple[tuple[Storage, ...], tuple[Event, ...]]:
    """Follow two updates of the recipe, the first with one microbatch, on one of `gpus` of this compute capability.

    None for `capability` means a CPU. Raises whatever the recipe's code raises.
    """
    attention.CAPABILITY.set(capability)
    on_gpu = capability is not None
    assert settings.micro_batch is not None and settings.precision is not None
    precision = settings.precision
    recipe = loaded.recipe
    model = pretend.build(lambda: adapt.model(recipe.model(), loaded.adaptation))
    batch = recipe.batch(settings.micro_batch)
    # A Python error in another thread's backward would end the process while it unwinds.
    with pretend.fake_mode(), recorder, torch.autograd.set_multithreading_enabled(False):
        recorder.mark("model", 0)
        hosted.move(recorder, model, recipe, settings, gpus)
        recorder.label(model.parameters(), "weights")
        recorder.label(model.buffers(), "buffers")
        checkpointing.apply(model, loaded.parts, settings.checkpointing)
        shared = sharding.share(recorder, model, recipe, settings, gpus)
        with shared.during_optimizer_setup():
            optimizer = adapt.optimizer(loaded, model)
        shared.divide(optimizer)
        kernels.choose(optimizer, settings.optimizer_kernel, many_by_default=on_gpu)
        stepping = offload.hosted(optimizer, settings)
        scaler = _Scaler() if precision == "fp16" else None
        clip_norm = loaded.parts.clip_norm
        samples = settings.micro_batch * accumulate
        for number, microbatches in enumerate((1, min(FOLLOWED_MICROBATCHES, accumulate))):
            rollout.follow(recorder, recipe, model, samples=samples, precision=precision, number=number)
            for index in range(microbatches):
                recorder.mark("forward", number, index)
                shared.before_forward()
                _microbatch(
                    recorder, recipe, model, batch, precision, scaler, 1 / microbatches, (number, index), shared
                )
            recorder.mark("optimizer", number)
            parameters = [parameter for parameter in shared.trained if parameter.grad is not None]
            if scaler:
                scaler.unscale(parameters)
            if clip_norm is not None:
                nn.utils.clip_grad_norm_(parameters, clip_norm, foreach=on_gpu)
            with values.answered():
                stepping.step()
            recorder.label(pretend.tensors(list(optimizer.state.values())), "optimizer states")
            if scaler:
                scaler.update()
            del parameters
            # A recipe's optimizer may clear its gradients in a way or at a time of its own.
            stepping.zero_grad(set_to_none=True)
            if gpus > 1:  # what another GPU steps is not among this one's
                for parameter in shared.trained:
                    parameter.grad = None
            shared.after_update()
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
    shared: SingleDevice,
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
    shared.before_backward()
    loss.backward()
    shared.after_backward()
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
