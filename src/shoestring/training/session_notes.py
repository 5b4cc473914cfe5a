"""What a session tells the user at its beginning about the data, the model and the settings."""

from collections.abc import Mapping
from typing import Any

from shoestring.base.units import count_text
from shoestring.recipe.optimizers import BuiltScheduler
from shoestring.recipe.options import LoadedRecipe
from shoestring.recipe.parts.evaluation import Evaluation
from shoestring.recipe.whole_batch import last_batch_notes
from shoestring.techniques import adapt, autotuning
from shoestring.techniques.norms import trains_batch_norm
from shoestring.techniques.pipeline import placement as pipeline
from shoestring.techniques.streaming import placement
from shoestring.training.engine import precision
from shoestring.training.engine.state import TrainingState
from shoestring.training.request import SessionRequest


def engine_notes(request: SessionRequest, state: TrainingState) -> list[str]:
    """Return notes for the user about the data, the model and the settings."""
    loaded, settings = request.recipe, request.settings
    micro_batch, notes = state.sizes.micro_batch, list(loaded.parts.data.notes())
    if trains_batch_norm(state.model) and micro_batch < loaded.effective_batch:
        notes.append(
            f"BatchNorm computes its statistics over each microbatch of {micro_batch}, not over the effective batch of "
            f"{loaded.effective_batch}: training with another microbatch would differ slightly"
        )
    notes += adapt.notes(state.model, loaded) + pipeline.notes(state.model)
    notes += placement.notes(state.model, settings, state.sizes.stream_group)
    if settings.cudnn_benchmark and not autotuning.uses_cudnn_benchmark(settings, loaded.parts):
        notes.append(autotuning.NOTE)
    notes += [_scheduler_note(item) for item in (state.schedulers.schedulers if state.schedulers else ())]
    if note := precision.precision_note(state.mixed_precision.name, request.device):
        notes.append(note)
    return notes


def _scheduler_note(built: BuiltScheduler) -> str:
    """Return when a scheduler makes its steps, which depends on the form that `optimizer` has returned."""
    if built.by_epoch:
        return (
            f"{built.name} makes its steps after epochs, as in Lightning; for a step after each update, "
            'return {"scheduler": ..., "interval": "step"}, or the pair (optimizer, scheduler)'
        )
    return (
        f"{built.name} makes a step after each update; for a step after each epoch, return the lists "
        "([optimizer], [scheduler])"
    )


def data_notes(loaded: LoadedRecipe, data: Mapping[str, Any]) -> list[str]:
    """Return notes on the size of the last batches, and on metrics that are not computed without validation data."""
    notes = [*last_batch_notes(loaded, data), *_fold_notes(loaded, data)]
    parts, defaults = loaded.parts.evaluation, Evaluation()
    decides = [name for name in ("best", "patience") if getattr(parts, name) != getattr(defaults, name)]
    evaluates_this_part = parts.evaluate is not None and "test" not in data
    if "validation" in data or not (decides or evaluates_this_part):
        return notes
    unused = " and ".join([*(["evaluate"] if evaluates_this_part else []), *decides])
    return [*notes, f"data() has no part `validation`, so {unused} of {loaded.name} cannot be used"]


def _fold_notes(loaded: LoadedRecipe, data: Mapping[str, Any]) -> list[str]:
    """Return a note on a validation part of the recipe that a fold of the training data replaces."""
    # A probe and a replay have the training part alone.
    count = data["validation"].replaces if loaded.fold and "validation" in data else 0
    if not count:
        return []
    return [
        f"fold={loaded.fold} is a fold of the training part of data(); its {count_text(count)} validation samples are "
        "not used: add them to the training part to use them"
    ]
