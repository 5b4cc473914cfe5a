"""Run updates as the engine does, on the simulated device, and mark their phases in the record."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.base.errors import TraceError, UsageError
from shoestring.base.settings import Settings
from shoestring.planning.trace import (
    attention,
    autocast,
    determinism,
    inference,
    loading,
    masks,
    offloading,
    python_calls,
    sharding,
    simulated_device,
    values,
)
from shoestring.planning.trace.averaging import TracedAverages
from shoestring.planning.trace.folding import Folding
from shoestring.planning.trace.loading import Loading
from shoestring.planning.trace.record import Event, Storage
from shoestring.planning.trace.recorder import Recorder
from shoestring.planning.trace.simulated_device import DEVICE
from shoestring.planning.trace.single_device import SingleDevice
from shoestring.recipe.losses import Loss, clip_norm, losses_by_stage, scalar_loss
from shoestring.recipe.options import LoadedRecipe
from shoestring.techniques import adapt, checkpointing, fp32_modules, kernels, memory_format, nested, offload

TRACED_MICROBATCHES = 2
"""The second accumulates into existing gradients; all later ones repeat it."""


def run(
    recorder: Recorder,
    loaded: LoadedRecipe,
    settings: Settings,
    *,
    accumulate: int,
    capability: tuple[int, int] | None,
    gpus: int = 1,
    torch_ddp: bool = False,
    way_of_loading: Loading = "engine",
    folds: bool = True,
) -> tuple[tuple[Storage, ...], tuple[Event, ...]]:
    """Trace two updates of the recipe on one of `gpus` of this compute capability.

    Each has at most `TRACED_MICROBATCHES` of the `accumulate` microbatches of each logical shard. `torch_ddp`: the
    model is in torch's DistributedDataParallel, not in the engine. `way_of_loading`: who brings the weights to the
    device.

    With `folds` only some of the model's identical blocks run, for the same trace (`folding.py`).

    If the recipe declares stages, each of the two is one update of every stage. A `capability` of None means a CPU.

    Raises whatever the recipe's code raises, and NotRepeatableError if the model has to be traced without `folds`.
    """
    attention.CAPABILITY.set(capability)
    on_gpu = capability is not None
    assert settings.micro_batch is not None and settings.precision is not None
    precision = settings.precision
    recipe, losses = loaded.recipe, losses_by_stage(loaded.recipe)
    model = simulated_device.build(lambda: adapt.planned_model(loaded))
    memory_format.apply(model, settings.memory_format)
    masks.IS_PACKED.set(settings.packing == "yes")
    make_batch = loaded.parts.data.packed_batch if settings.packing == "yes" else None
    batch = (make_batch or recipe.batch)(settings.micro_batch)
    # A Python exception raised in backward in another thread would abort the process.
    with (
        simulated_device.fake_mode(),
        recorder,
        torch.autograd.set_multithreading_enabled(False),
        ExitStack() as stack,
    ):
        stack.enter_context(python_calls.counting(recorder.count_python_calls))
        if on_gpu and way_of_loading == "engine" and not torch_ddp:
            stack.enter_context(determinism.deterministic_operators())
        recorder.mark("model", 0)
        if way_of_loading == "transformers":
            loading.load_with_transformers(recorder, model)
        else:
            offloading.move(recorder, model, recipe, settings, gpus, from_host=on_gpu)
        recorder.label(model.parameters(), "weights")
        recorder.label(model.buffers(), "buffers")
        checkpointing.apply(model, loaded.parts, settings.checkpointing)
        fp32_modules.apply(model, settings.fp32_modules)
        can_fold = folds and settings.offload in (None, "no") and not torch_ddp
        blocks = checkpointing.blocks(model, loaded.parts)
        folding = Folding(recorder, model, blocks if can_fold else [])
        stack.enter_context(folding.attached())
        parallelism = sharding.apply(recorder, model, blocks, settings, gpus, torch_ddp=torch_ddp)
        shards = sharding.traced_shards(settings, gpus, torch_ddp=torch_ddp)
        with parallelism.during_optimizer_setup():
            optimizer = adapt.optimizer(loaded, model)
        averages = TracedAverages(recorder, parallelism.trained, loaded.ema)
        parallelism.divide(optimizer)
        kernels.choose(optimizer, settings.optimizer_kernel, foreach_by_default=on_gpu)
        device_optimizer = offload.offloaded_optimizer(optimizer, settings)
        scaler = _Scaler() if precision == "fp16" else None
        samples = settings.micro_batch * accumulate
        initially_trained = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
        microbatches = min(TRACED_MICROBATCHES, accumulate)
        for number, loss in [(number, loss) for number in range(2) for loss in losses]:
            if loaded.parts.learning.rollout:
                recorder.mark("generation", number)
                inference.run_steps(recorder, loaded.parts.learning.rollout, model, recipe.batch(samples), settings)
            device_batch: Any = None
            for index in range(microbatches * max(1, shards)):
                recorder.mark("forward", number, index)
                if index == 0:
                    parallelism.before_update()
                # The previous batch is replaced once the next one is on the device.
                device_batch = simulated_device.move_batch(batch, settings.memory_format)
                recorder.label(nested.tensors(device_batch), "batch")
                parallelism.before_forward()
                with folding.microbatch():
                    _run_microbatch(
                        recorder,
                        loss,
                        model,
                        device_batch,
                        settings,
                        scaler,
                        1 / microbatches,
                        (number, index),
                        parallelism,
                    )
                if (index + 1) % microbatches == 0:
                    parallelism.after_shard()
            del device_batch
            if shards:
                recorder.mark("exchange", number)
                parallelism.exchange()
            recorder.mark("optimizer", number)
            parameters = [parameter for parameter in parallelism.trained if parameter.grad is not None]
            if scaler:
                scaler.unscale(parameters)
            if (max_norm := clip_norm(loaded.parts, loss)) is not None:
                nn.utils.clip_grad_norm_(parameters, max_norm, foreach=on_gpu)
            with values.replace_unknown_values():
                device_optimizer.step()
            recorder.label(simulated_device.tensors(list(optimizer.state.values())), "optimizer states")
            if scaler:
                scaler.update()
            averages.add()
            del parameters
            # A recipe's optimizer may override how and when its gradients are cleared.
            device_optimizer.zero_grad(set_to_none=True)
            if gpus > 1:  # the optimizer lacks the parameters that other GPUs update
                for parameter in parallelism.trained:
                    parameter.grad = None
            parallelism.after_update()
            for parameter, is_trained in initially_trained:  # a loss may freeze some for its stage
                parameter.requires_grad_(is_trained)
        recorder.mark("end", 1)
        return recorder.record()


def _run_microbatch(
    recorder: Recorder,
    compute_loss: Loss,
    model: nn.Module,
    device_batch: Any,
    settings: Settings,
    scaler: _Scaler | None,
    loss_scale: float,
    position: tuple[int, int],
    parallelism: SingleDevice,
) -> None:
    """Run forward and backward of a microbatch; `position` is the number of its update and its index there."""
    assert settings.precision is not None
    with autocast.region(settings.precision):
        loss = _mean_loss(compute_loss, model, device_batch) * loss_scale
    if scaler:
        loss = scaler.scale(loss)
    recorder.mark("backward", *position)
    parallelism.before_backward()
    loss.backward()
    parallelism.after_backward()
    recorder.label((parameter.grad for parameter in model.parameters()), "gradients")


def _mean_loss(compute_loss: Loss, model: nn.Module, batch: Any) -> Tensor:
    """Return the mean over the samples of the batch.

    What the recipe has returned is only referred to in this function. In the caller's variables it would remain in
    memory during backward, which it does not in training.
    """
    value = compute_loss(model, batch)
    try:
        loss, weight = scalar_loss(value)
    except UsageError as error:
        # For a plan, a UsageError says that other settings may do; a microbatch of 1 would hide the mistake.
        raise TraceError(error.message, hint=error.hint) from error
    mean: Tensor = loss if weight is None else loss / weight
    return mean


class _Scaler:
    """The tensors and operators of `torch.amp.GradScaler`, which itself reads values from the device."""

    def __init__(self) -> None:
        self._scale = torch.ones((), device=DEVICE)
        self._growth = torch.zeros((), dtype=torch.int32, device=DEVICE)

    def scale(self, loss: Tensor) -> Tensor:
        return loss * self._scale

    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        self._non_finite = torch.zeros((), device=DEVICE)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, self._non_finite, self._scale.reciprocal())

    def update(self) -> None:
        torch._amp_update_scale_(self._scale, self._growth, self._non_finite, 2.0, 0.5, 2000)
