"""The state before the first update, for training on a device."""

import torch

from shoestring.base.settings import Settings
from shoestring.recipe.options import LoadedRecipe
from shoestring.techniques import autotuning, deferred_casts, tf32
from shoestring.techniques.fallbacks import Sizes
from shoestring.training.engine import cuda_graphs
from shoestring.training.engine.assembly import DevicePlace, assemble
from shoestring.training.engine.parallel.ranks import ONE_RANK, Ranks
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
    place = DevicePlace(device=device, ranks=ranks)
    assembly = assemble(loaded, settings, place)
    built, optimizer = assembly.built_optimizer, assembly.optimizer
    torch.backends.cudnn.benchmark = autotuning.uses_cudnn_benchmark(settings, loaded.parts)
    tf32.apply(settings)
    return TrainingState(
        model=assembly.model,
        optimizer=optimizer,
        schedulers=SteppedSchedulers(built, optimizer, updates_per_epoch) if built.schedulers else None,
        mixed_precision=assembly.mixed_precision,
        learning_rates=[float(group["lr"]) for group in optimizer.param_groups],
        parts=loaded.parts,
        epochs=loaded.epochs,
        max_updates=loaded.max_updates,
        updates_per_epoch=updates_per_epoch,
        sizes=Sizes.from_settings(settings),
        averages=assembly.averages,
        cuda_graphs=cuda_graphs.build_cuda_graphs(assembly.model, settings, device),
        fully_sharded=assembly.fully_sharded,
        build_model=lambda: deferred_casts.convert_all(place.model(loaded, settings)),
    )
