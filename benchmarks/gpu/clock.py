"""Time the engine's updates of one case, or the kernels of the GPU, in a separate process.

    python benchmarks/gpu/clock.py < QUESTION > ANSWER

QUESTION is JSON: `case` (null: the kernels), `device` (`cuda` or `cpu`). ANSWER contains the `seconds` of each update
after warm-up and `fits`; for the kernels `rates`, with the names of `estimate/rates.py`; or `error`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from benchmarks.gpu.cases import Case

from shoestring.data.batches import to_device
from shoestring.engine.state import build
from shoestring.engine.update import update
from shoestring.recipe.options import LoadedRecipe
from shoestring.recipe.parts import Parts

WARM_UP = 3
"""Updates before the measurement: they create optimizer states and allocator segments, and cuDNN selects kernels."""

MIN_UPDATES, MIN_SECONDS = 5, 4.0
"""The minimum number of measured updates, and their minimum total time."""

SIZES = (256, 512, 1024, 2048, 4096, 8192)
"""Rows, columns and depth of the timed matrix products."""

MANY_VALUES = 1 << 26
"""Size of the tensors for measuring bandwidth."""


def time_updates(case: Case, device: torch.device) -> dict[str, Any]:
    """Time each update. Raises what the model raises, except out-of-memory errors."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return {"seconds": list(_run_updates(case.load(Path(folder)), case, device)), "fits": True}
        except torch.cuda.OutOfMemoryError:
            return {"seconds": [], "fits": False}


def time_kernels(device: torch.device) -> dict[str, Any]:
    """Measure FLOP/s by size and type, bytes/s by kind, and the seconds of the smallest operator on this device."""
    half = torch.float16 if device.type == "cuda" else torch.bfloat16
    sizes = SIZES if device.type == "cuda" else SIZES[:2]
    rates: dict[str, Any] = {}
    for name, dtype in (("products", torch.float32), ("half", half)):
        rates[name] = []
        for size in sizes:
            matrix = torch.randn(size, size, device=device, dtype=dtype)
            rates[name].append([size, 2 * size**3 / _time_call(partial(torch.mm, matrix, matrix), device)])
    values = torch.randn(MANY_VALUES // 4096 if device.type == "cpu" else MANY_VALUES // 1024, 1024, device=device)
    transferred_bytes = 2 * values.numel() * values.element_size()
    norm = torch.nn.LayerNorm(1024, device=device)
    with torch.no_grad():
        rates["bandwidth"] = {
            "elementwise": transferred_bytes / _time_call(lambda: values.mul(2.0), device),
            "softmax": transferred_bytes / _time_call(lambda: values.softmax(-1), device),
            "norm": transferred_bytes / _time_call(lambda: norm(values), device),
        }
        small = torch.zeros(8, device=device)
        rates["call_seconds"] = _time_call(lambda: small.add(1.0), device)
    return {"rates": rates}


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
            clip_norm=Parts.from_recipe(recipe).clip_norm,
        )
        _wait(device)
        if number >= WARM_UP:
            yield time.perf_counter() - start


def _time_call(call: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of one of many consecutive calls, after a warm-up."""
    duration, times = 0.0, 1
    while duration < 0.2:
        times *= 2
        _wait(device)
        start = time.perf_counter()
        for _ in range(times):
            call()
        _wait(device)
        duration = time.perf_counter() - start
    return duration / times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> int:
    question = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries must not mix with the answer
    device, case = torch.device(question["device"]), question["case"]
    try:
        answer = time_updates(Case.from_json(case), device) if case else time_kernels(device)
    except Exception as error:  # noqa: BLE001 - a failed case is a row of the table
        answer = {"error": f"{type(error).__name__}: {str(error)[:400]}"}
    json.dump(answer, answers)
    answers.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
