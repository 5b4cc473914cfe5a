"""What a check measures besides the updates of a probe: the loading in one process, whether its samples can be fetched
again, and the losses of a microbatch.
"""

import time
from typing import Any

from shoestring.runs.check.probe.context import Context
from shoestring.training.data.batches import collate_function
from shoestring.training.data.loading import Loader
from shoestring.training.data.own_generators import OwnGenerators
from shoestring.training.data.repeatable import compare_fetches
from shoestring.training.engine.halves import examine_loss
from shoestring.training.first_microbatch import first_microbatch
from shoestring.training.training_session import TrainingSession

LOADED_SAMPLES, LOADING_SECONDS = 256, 5.0
"""The measurement of loading ends after so many samples or seconds."""


def compare(context: Context, session: TrainingSession) -> None:
    """Measure loading in this process, fetch samples twice, and compare losses of a microbatch."""
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
    members = loader.parts(0, session.state.sizes.micro_batch)[0]
    comparison = compare_fetches(loader, members)
    generators = OwnGenerators(dataset=context.data["train"], collate=collate_function(request.recipe.recipe)).paths
    context.report(
        {
            "stage": "randomness",
            "samples": comparison.samples,
            "skipped": comparison.skipped,
            "difference": comparison.text if comparison.difference else "",
            "generators": generators,
        }
    )
    if request.recipe.parts.learning.whole_batch:
        return
    report = examine_loss(first_microbatch(session))
    if report.difference:
        context.report({"stage": "halves", "difference": report.difference.text})
    context.report({"stage": "loss", "unseeded": report.unseeded_text, "changed": report.changed_text})


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
