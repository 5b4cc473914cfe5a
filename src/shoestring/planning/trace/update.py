"""Run the engine's own updates on the simulated device, and mark their phases in the record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from shoestring.base.errors import TraceError, UsageError
from shoestring.base.settings import Settings
from shoestring.planning.trace import (
    attention,
    determinism,
    host_memory,
    inference,
    masks,
    python_calls,
    simulated_device,
    values,
)
from shoestring.planning.trace.loading import Loading
from shoestring.planning.trace.microbatches import Microbatches
from shoestring.planning.trace.record import BlockUse, Event, Storage
from shoestring.planning.trace.recorder import Recorder
from shoestring.planning.trace.simulated_place import SimulatedPlace
from shoestring.recipe.after_update import after_update_of
from shoestring.recipe.losses import Loss, clip_norm, losses_by_stage, scalar_loss
from shoestring.recipe.options import LoadedRecipe
from shoestring.techniques import adapt
from shoestring.training.data.own_generators import LazyGenerators, OwnGenerators
from shoestring.training.engine.after_update import run_after_update
from shoestring.training.engine.assembly import assemble, host_model, strategy


class Update(NamedTuple):
    """The record of an update, with the fields of a trace."""

    storages: tuple[Storage, ...]
    events: tuple[Event, ...]
    block_bytes: tuple[int, ...]
    block_uses: tuple[BlockUse, ...]


TRACED_MICROBATCHES = 2
"""The second accumulates into existing gradients; all later ones repeat it."""


def traced_microbatches(settings: Settings, accumulate: int) -> int:
    """Return how many of the `accumulate` microbatches of a logical shard are traced.

    With `sharding=pipeline`, the third one is the first that has activations besides those of the one before and the
    accumulated gradients.
    """
    return min(TRACED_MICROBATCHES + settings.is_pipeline, accumulate)


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
    is_pretrained: bool = True,
) -> Update:
    """Trace two updates of the recipe on one of `gpus` of this compute capability.

    Each has at most `traced_microbatches` of the `accumulate` microbatches of each logical shard. `torch_ddp`: the
    model is in torch's DistributedDataParallel, not in the engine. `way_of_loading`: who brings the weights to the
    device.

    With `folds` only some of the model's identical blocks run, for the same trace (`folding.py`).

    If the recipe declares stages, each of the two is one update of every stage. A `capability` of None means a CPU.

    Raises whatever the recipe's code raises, and NotRepeatableError if the model has to be traced without `folds`.
    """
    attention.CAPABILITY.set(capability)
    is_gpu = capability is not None
    assert settings.micro_batch is not None and settings.precision is not None
    recipe, losses = loaded.recipe, losses_by_stage(loaded.recipe)
    model = host_model(lambda: simulated_device.build(lambda: adapt.planned_model(loaded)), settings)
    recorder.loading_host_bytes = host_memory.loading_bytes(model, loaded, settings, is_pretrained=is_pretrained)
    masks.IS_PACKED.set(settings.packing == "yes")
    make_batch = loaded.parts.data.packed_batch if settings.packing == "yes" else None
    batch = (make_batch or recipe.batch)(settings.micro_batch)
    microbatches = Microbatches(recorder.log, batch, settings, traced_microbatches(settings, accumulate))
    # A Python exception raised in backward in another thread would abort the process.
    with (
        simulated_device.fake_mode(),
        recorder,
        torch.autograd.set_multithreading_enabled(False),
        ExitStack() as stack,
    ):
        stack.enter_context(python_calls.counting(recorder.log.count_python_calls))
        if is_gpu and way_of_loading == "engine" and not torch_ddp:
            stack.enter_context(determinism.deterministic_operators())
        stack.enter_context(_norms_of_all_gradients(in_few_kernels=is_gpu))
        recorder.log.mark("model", 0)
        place = SimulatedPlace(
            recorder.log,
            model,
            settings,
            microbatches,
            stack,
            gpus=gpus,
            is_gpu=is_gpu,
            torch_ddp=torch_ddp,
            way_of_loading=way_of_loading,
            folds=folds,
        )
        assembly = assemble(loaded, settings, place)
        averages, shards = assembly.averages, place.shards
        recorder.log.label(averages.averages.values() if averages else (), "averaged weights")
        updates = strategy(assembly, shards, place.ranks, place.device, seed=loaded.seed)
        updates.generators = LazyGenerators(unseeded := OwnGenerators())  # values do not matter
        initially_trained = [(parameter, parameter.requires_grad) for parameter in place.parameters]
        for number, loss in [(number, loss) for number in range(2) for loss in losses]:
            if loaded.parts.learning.rollout:
                recorder.log.mark("generation", number)
                samples = settings.micro_batch * accumulate
                inference.run_steps(recorder.log, loaded.parts.learning.rollout, model, recipe.batch(samples), settings)
            microbatches.begin_update(model, number)
            with values.assumed():
                updates.update(
                    values.known_in(partial(_scalar_loss, loss)),
                    number,
                    microbatches.by_shard(shards.own, exchanges=shards.count > 1),
                    samples=microbatches.size * microbatches.count * shards.count,
                    mixed_precision=assembly.mixed_precision,
                    clip_norm=clip_norm(loaded.parts, loss),
                    run=microbatches.run,
                )
                states = simulated_device.tensors(list(assembly.optimizer.state.values()))
                recorder.log.label(states, "optimizer states")
                if hook := after_update_of(loaded.parts, loss):
                    hook_call = values.known_in(run_after_update)
                    hook_call(hook, model, seed=loaded.seed, number=number, generators=unseeded)
                if averages:
                    averages.add()
            place.hooks.after_update()
            for parameter, is_trained in initially_trained:  # a loss may freeze some for its stage
                parameter.requires_grad_(is_trained)
        recorder.host_bytes = host_memory.bytes_by_part(model, assembly.optimizer, averages)
        recorder.log.mark("end", 1)
        storages, events = recorder.log.record()
        streamable = place.streamable
        return Update(
            storages=storages,
            events=events,
            block_bytes=streamable.bytes if streamable else (),
            block_uses=streamable.uses(events) if streamable else (),
        )


@contextmanager
def _norms_of_all_gradients(*, in_few_kernels: bool) -> Iterator[None]:
    """Let `clip_grad_norm_` choose the kernels of the target, which it does not for fake tensors."""
    module: Any = nn.utils.clip_grad
    has_foreach_support = module._has_foreach_support
    module._has_foreach_support = lambda *_: in_few_kernels
    try:
        yield
    finally:
        module._has_foreach_support = has_foreach_support


def _scalar_loss(compute_loss: Loss, model: nn.Module, batch: Any) -> Any:
    """Return what the recipe's loss returns. Raises TraceError if that is not a loss."""
    value = compute_loss(model, batch)
    try:
        scalar_loss(value)
    except UsageError as error:
        # For a plan, a UsageError says that other settings may do; a microbatch of 1 would hide the mistake.
        raise TraceError(error.message, hint=error.hint) from error
    return value
