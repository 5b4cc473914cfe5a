"""Recipes whose updates are never split, `whole_batch = True`: their loss compares all samples of an update.

An update, and a batch of an evaluation, is then a single batch of `effective_batch` samples on one device.
"""

import os
from collections.abc import Mapping
from typing import Any

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.recipe.options import LoadedRecipe


def require_whole_batch(loaded: LoadedRecipe, settings: Settings) -> None:
    """Raise UsageError if the settings, or the environment of a launcher of several processes, would split an update
    of a recipe whose updates are never split.
    """
    if not loaded.parts.learning.whole_batch:
        return
    size, processes = loaded.effective_batch, os.environ.get("WORLD_SIZE", "")
    problems = []
    if settings.micro_batch is not None and settings.micro_batch < size:
        problems.append(
            f"micro_batch={settings.micro_batch}: the loss would compare {settings.micro_batch} samples with each "
            f"other, not the {size} of effective_batch"
        )
    parts = {name: getattr(settings, name) or 1 for name in ("gpus", "logical_shards")}
    if processes.isdecimal() and int(processes) > 1:
        parts = {"WORLD_SIZE": int(processes)}
    problems += [
        f"{name}={count}: each of the {count} parts would compare only its own samples with each other"
        for name, count in parts.items()
        if count > 1
    ]
    if problems:
        raise UsageError(
            f"updates of {loaded.name} are never split, because the recipe has whole_batch = True",
            problems=problems,
            hint="leave micro_batch to the plan, and start one process; a smaller effective_batch needs less memory, "
            "but changes the training result",
        )


def last_batch_notes(loaded: LoadedRecipe, data: Mapping[str, Any]) -> list[str]:
    """Return a note on the parts of the data whose last batch is not of `effective_batch` samples; [] without one."""
    if not loaded.parts.learning.whole_batch:
        return []
    size = loaded.effective_batch
    lasts = {name: _last_batch(name, len(dataset), size) for name, dataset in data.items()}
    unequal = [f"{name} {count}" for name, count in lasts.items() if count != size]
    if not unequal:
        return []
    return [
        f"whole_batch: the last batch does not have the {size} samples of effective_batch, and its loss compares only "
        f"its own samples: {', '.join(unequal)}"
    ]


def _last_batch(part: str, samples: int, size: int) -> int:
    remainder = samples % size or min(samples, size)
    # In training a single remaining sample joins the update before (`contract.updates_per_epoch`).
    return size + 1 if part == "train" and remainder == 1 and 1 < size < samples else remainder
