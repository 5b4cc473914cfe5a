"""What a check measures besides the updates of a probe: the loading in one process, and the halves of a microbatch."""

import time
from typing import Any

from shoestring.runs.check.probe.context import Context
from shoestring.training.data.loading import Loader
from shoestring.training.engine.halves import compare_with_halves
from shoestring.training.first_microbatch import first_microbatch
from shoestring.training.training_session import TrainingSession

LOADED_SAMPLES, LOADING_SECONDS = 256, 5.0
"""The measurement of loading ends after so many samples or seconds."""


def compare(context: Context, session: TrainingSession) -> None:
    """Measure loading in this process, and compare the loss of a microbatch with that of its halves."""
    updates, request = session.updates, session.request
    assert updates is not None
    loader = Loader(
        request.recipe.recipe,
        context.data["train"],
        updates.order,
        seed=request.recipe.seed,
        device=context.device,
        workers=0,
        packing=request.settings.packing == "yes",
        memory_format=request.settings.memory_format,
    )
    samples, seconds = _measure_loading(loader, updates.order.updates_per_epoch, session.state.sizes.micro_batch)
    context.report({"stage": "loading", "samples": samples, "seconds": seconds})
    if request.recipe.parts.learning.whole_batch:
        return
    if difference := compare_with_halves(first_microbatch(session)):
        context.report({"stage": "halves", "difference": difference.text})


def _measure_loading(loader: Any, updates: int, size: int) -> tuple[int, float]:
    """Load further updates in this process, the first one again if there is no other. Return samples and seconds."""
    samples, start = 0, time.perf_counter()
    for update in range(1, updates) if updates > 1 else [0]:
        for _, count in loader.microbatches(update, size):
            samples += count
            seconds = time.perf_counter() - start
            if samples >= LOADED_SAMPLES or seconds > LOADING_SECONDS:
                return samples, seconds
    return samples, time.perf_counter() - start
