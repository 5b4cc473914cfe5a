"""Measure the memory of the engine's updates of one case in a separate process.

    python -m benchmarks.gpu.measure < QUESTION > ANSWER

QUESTION is JSON: `case`, `device` (`cuda` or `cpu`), `limit_bytes` (the limit of the allocator; null: none). ANSWER
contains `allocated`, `reserved` and `process` in bytes (null if unavailable) and `fits`; or `error`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu.cases import Case

from shoestring.base.errors import RunError
from shoestring.recipe.options import LoadedRecipe
from shoestring.recipe.parts import Parts
from shoestring.training.data.batches import to_device
from shoestring.training.engine.building import build
from shoestring.training.engine.determinism import deterministic
from shoestring.training.engine.update import update

UPDATES = 4
"""The first creates the optimizer states, the second has its peak beside them, and two more confirm that peak."""

MAX_OVERFLOWS = 30
"""In fp16 the first gradients of random weights overflow, and the optimizer makes no step until the loss scale fits."""


def measure(case: Case, device: torch.device, limit_bytes: int | None) -> dict[str, Any]:
    """Measure the memory of `UPDATES` updates with the kernels of a training run.

    Raises what the model raises, except out-of-memory errors.
    """
    cuda = device.type == "cuda"
    if cuda and limit_bytes is not None:
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total))
    fits = True
    with tempfile.TemporaryDirectory() as folder:
        try:
            with deterministic():
                _run(case.load(Path(folder)), case, device)
        except torch.cuda.OutOfMemoryError:
            fits = False
    if not cuda:
        return {"allocated": None, "reserved": None, "process": None, "fits": fits}
    return {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "process": _process_bytes(),
        "fits": fits,
    }


def _run(loaded: LoadedRecipe, case: Case, device: torch.device) -> None:
    recipe, settings = loaded.recipe, case.settings
    assert settings.micro_batch
    state = build(loaded, settings, device)

    def microbatches() -> Iterator[tuple[Any, int]]:
        for _ in range(2):
            yield to_device(recipe.batch(settings.micro_batch), device), settings.micro_batch or 1

    steps = 0
    for _ in range(UPDATES + MAX_OVERFLOWS):
        result = update(
            state.model,
            state.optimizer,
            recipe.loss,
            microbatches(),
            samples=2 * settings.micro_batch,
            mixed_precision=state.mixed_precision,
            clip_norm=Parts.from_recipe(recipe).learning.clip_norm,
        )
        steps += result.stepped
        if steps == UPDATES:
            break
    else:
        raise RunError(f"the gradients of {steps + MAX_OVERFLOWS} updates overflowed")
    if device.type == "cuda":
        torch.cuda.synchronize()


def _process_bytes() -> int | None:
    """Return the memory that the driver reports for this process; None if unavailable, as in many containers."""
    import pynvml

    try:
        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(0).uuid)
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:
        return None
    own_bytes = (int(entry.usedGpuMemory) for entry in processes if entry.pid == os.getpid() and entry.usedGpuMemory)
    return next(own_bytes, None)


def main() -> int:
    question = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries must not mix with the answer
    try:
        answer = measure(Case.from_json(question["case"]), torch.device(question["device"]), question["limit_bytes"])
    except Exception as error:  # noqa: BLE001 - a failed case is a row of the table
        answer = {"error": f"{type(error).__name__}: {str(error)[:400]}"}
    json.dump(answer, answers)
    answers.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
