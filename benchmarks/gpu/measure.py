"""One case in a process of its own: the engine's update, and the memory it took.

    python benchmarks/gpu/measure.py < QUESTION > ANSWER

QUESTION is JSON: `case`, `device` (`cuda` or `cpu`), `limit_bytes` (what the allocator may reserve; null: all).
ANSWER: `allocated`, `reserved`, `process` in bytes (null where it could not be had), `fits`; or `error`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# The workspaces of cuBLAS as on any card: a Hopper would take 32 MiB of its own accord. Before CUDA starts.
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:2:16:8"

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from benchmarks.gpu.cases import Case

from shoestring.data.batches import to_device
from shoestring.engine.state import build
from shoestring.engine.update import update
from shoestring.recipe.options import LoadedRecipe
from shoestring.recipe.parts import Parts

UPDATES = 4
"""The first makes the optimizer's states, the second has its peak beside them, two more show that it stays so."""


def measure(case: Case, device: torch.device, limit_bytes: int | None) -> dict[str, Any]:
    """The memory of `UPDATES` updates. Raises what the model raises, but for want of memory.

    Without the deterministic kernels of a training run: they ask for other workspaces than those set here.
    """
    cuda = device.type == "cuda"
    if cuda and limit_bytes is not None:
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total))
    fits = True
    with tempfile.TemporaryDirectory() as folder:
        try:
            _run(case.loaded(Path(folder)), case, device)
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

    for _ in range(UPDATES):
        update(
            state.model,
            state.optimizer,
            recipe.loss,
            microbatches(),
            samples=2 * settings.micro_batch,
            mixed_precision=state.mixed_precision,
            clip_norm=Parts.of(recipe).clip_norm,
        )
    if device.type == "cuda":
        torch.cuda.synchronize()


def _process_bytes() -> int | None:
    """What the driver counts for this process; None where it does not tell, as in many containers."""
    import pynvml

    try:
        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(0).uuid)
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:
        return None
    return next((int(each.usedGpuMemory) for each in running if each.pid == os.getpid() and each.usedGpuMemory), None)


def main() -> int:
    question = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    try:
        answer = measure(Case.from_json(question["case"]), torch.device(question["device"]), question["limit_bytes"])
    except Exception as error:  # noqa: BLE001 - one case that fails is a row of the table
        answer = {"error": f"{type(error).__name__}: {str(error)[:400]}"}
    json.dump(answer, answers)
    answers.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
