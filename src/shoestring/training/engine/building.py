"""The state before the first update: the recipe's model and optimizer, with the techniques of the settings applied."""

from typing import cast

import torch
from torch.optim import Optimizer

from shoestring.base.settings import Settings
from shoestring.recipe.options import LoadedRecipe
from shoestring.techniques import (
    adapt,
    autotuning,
    checkpointing,
    compiled,
    fp32_modules,
    kernels,
    memory_format,
    offload,
)
from shoestring.techniques.fallbacks import Sizes
from shoestring.training.data.seeding import derive, seed_all
from shoestring.training.engine import cuda_graphs
from shoestring.training.engine.averaging import AveragedWeights
from shoestring.training.engine.memory import explaining_out_of_memory
from shoestring.training.engine.parallel.divided_optimizer import DividedOptimizer, require_divisible
from shoestring.training.engine.parallel.fully_sharded import is_fully_sharded, shard
from shoestring.training.engine.parallel.ranks import ONE_RANK, Ranks
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.engine.schedulers import SteppedSchedulers
from shoestring.training.engine.state import TrainingState


def build(
    loaded: LoadedRecipe,
    settings: Settings,
    device: torch.device,
    *,
    updates_per_epoch: int = 1,
    ranks: Ranks = ONE_RANK,
) -> TrainingState:
    """Build the state before the first update: a model initialized from the seed, on `device`, in training mode.

    Raises UsageError for a technique that the model or its optimizer does not support, and NoMemoryError if they do not
    fit.
    """
    assert settings.precision is not None
    seed_all(derive(loaded.seed, "model"))
    with explaining_out_of_memory("building the model, model()"):
        model = adapt.trained_model(
            loaded.recipe.model(),
            loaded.adaptation,
            settings,
            keeps_stored_type=loaded.parts.learning.keeps_stored_type,
        ).train()
        memory_format.apply(model, settings.memory_format)
    fully_sharded = None
    with explaining_out_of_memory(f"moving the model to {device}"):
        if is_fully_sharded(settings, ranks):
            blocks = checkpointing.blocks(model, loaded.parts)
            fully_sharded = shard(
                model,
                blocks,
                ranks,
                device,
                reshard_after_forward=settings.sharding == "zero3",
                on_host=settings.offload == "parameters",
            )
        else:
            offload.move(model, loaded.parts, settings, device)
        compiled.apply(model, loaded.parts, settings, device)
        checkpointing.apply(model, loaded.parts, settings.checkpointing)
        fp32_modules.apply(model, settings.fp32_modules)
    with explaining_out_of_memory("building the optimizer"):
        built = adapt.trained_optimizer(loaded, model, device)
        kernels.choose(built.optimizer, settings.optimizer_kernel)
        optimizer = offload.offloaded_optimizer(built.optimizer, settings)
        if settings.sharding == "zero1" and ranks.size > 1:
            require_divisible(built.optimizer)
            optimizer = cast("Optimizer", DividedOptimizer(optimizer, ranks, device))
        schedulers = SteppedSchedulers(built, optimizer, updates_per_epoch) if built.schedulers else None
    with explaining_out_of_memory("averaging the weights (ema)"):
        averages = AveragedWeights(model, loaded.ema) if loaded.ema is not None else None
    torch.backends.cudnn.benchmark = autotuning.uses_cudnn_benchmark(settings, loaded.parts)
    return TrainingState(
        model=model,
        optimizer=optimizer,
        schedulers=schedulers,
        mixed_precision=mixed_precision(settings.precision, device),
        learning_rates=[float(group["lr"]) for group in optimizer.param_groups],
        parts=loaded.parts,
        epochs=loaded.epochs,
        max_updates=loaded.max_updates,
        updates_per_epoch=updates_per_epoch,
        sizes=Sizes.from_settings(settings),
        averages=averages,
        cuda_graphs=cuda_graphs.build_cuda_graphs(model, settings, device),
        fully_sharded=fully_sharded,
    )
