"""Time the engine's updates of one case, or the kernels of the GPU, in a separate process.

    python -m benchmarks.gpu.clock < QUESTION > ANSWER

QUESTION is JSON: `case` (null: the kernels), `device` (`cuda` or `cpu`), `seconds` (for the kernels). ANSWER contains
the `seconds` of each update after warm-up and `fits`; for the kernels `rates`, the content of a file of
`shoestring check --measure`; or `error`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu.cases import Case

from shoestring.hardware.catalog import Target
from shoestring.hardware.measured_file import content
from shoestring.hardware.probe import local, local_cpu
from shoestring.recipe.options import LoadedRecipe
from shoestring.recipe.parts import Parts
from shoestring.runs.check.rates.grid import GPU, SMALLEST, Grid
from shoestring.runs.check.rates.measure import measure_rates
from shoestring.training.data.batches import to_device
from shoestring.training.engine.building import build
from shoestring.training.engine.determinism import deterministic
from shoestring.training.engine.update import update

WARM_UP = 3
"""Updates before the measurement: they create optimizer states and allocator segments, and cuDNN selects kernels."""

MIN_UPDATES, MIN_SECONDS = 5, 4.0
"""The minimum number of measured updates, and their minimum total time."""


def time_updates(case: Case, device: torch.device) -> dict[str, Any]:
    """Time each update. Raises what the model raises, except out-of-memory errors."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with deterministic():
                return {"seconds": list(_run_updates(case.load(Path(folder)), case, device)), "fits": True}
        except torch.cuda.OutOfMemoryError:
            return {"seconds": [], "fits": False}


def time_kernels(target: Target, grid: Grid | None = None) -> dict[str, Any]:
    """Measure the rates of this machine's device, as `shoestring check --measure` does."""
    return {"rates": content(measure_rates(target, grid=grid))}


def _run_updates(loaded: LoadedRecipe, case: Case, device: torch.device) -> Iterator[float]:
    recipe, settings = loaded.recipe, case.settings
    assert settings.micro_batch
    state = build(loaded, settings, device)
    batch = to_device(recipe.batch(settings.micro_batch), device)
    measurement_start = time.perf_counter()
    for number in range(WARM_UP + 10_000):
        if number == WARM_UP:
            measurement_start = time.perf_counter()
        if number >= WARM_UP + MIN_UPDATES and time.perf_counter() - measurement_start > MIN_SECONDS:
            return
        start = time.perf_counter()
        update(
            state.model,
            state.optimizer,
            recipe.loss,
            ((batch, settings.micro_batch) for _ in range(2)),
            samples=2 * settings.micro_batch,
            mixed_precision=state.mixed_precision,
            clip_norm=Parts.from_recipe(recipe).learning.clip_norm,
        )
        _wait(device)
        if number >= WARM_UP:
            yield time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> int:
    question = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries must not mix with the answer
    device, case = torch.device(question["device"]), question["case"]
    try:
        if case:
            answer = time_updates(Case.from_json(case), device)
        elif device.type == "cuda":
            answer = time_kernels(
                local(), dataclasses.replace(GPU, seconds=question["seconds"], rounds=(2, GPU.rounds[1]))
            )
        else:  # a dry run
            answer = time_kernels(local_cpu(), SMALLEST)
    except Exception as error:  # noqa: BLE001 - a failed case is a row of the table
        answer = {"error": f"{type(error).__name__}: {str(error)[:400]}"}
    json.dump(answer, answers)
    answers.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
