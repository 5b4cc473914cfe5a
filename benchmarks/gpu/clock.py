"""One case in a process of its own: how long the engine's updates take, or what the GPU's kernels sustain.

    python benchmarks/gpu/clock.py < QUESTION > ANSWER

QUESTION is JSON: `case` (null: the kernels), `device` (`cuda` or `cpu`). ANSWER: `seconds` of each update once warm,
`fits`; for the kernels `rates`, by the names of `estimate/rates.py`; or `error`.
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

WARM = 3
"""Updates before the first that counts: the optimizer's states, the allocator's segments, cuDNN's choices."""

LEAST, SECONDS = 5, 4.0
"""Updates that count: at least so many, and until so long has passed."""

SIZES = (256, 512, 1024, 2048, 4096, 8192)
"""Rows, columns and depth of the products timed."""

MANY = 1 << 26
"""Values of the tensors whose bytes are timed."""


def clocked(case: Case, device: torch.device) -> dict[str, Any]:
    """Seconds of each update. Raises what the model raises, but for want of memory."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return {"seconds": list(_updates(case.loaded(Path(folder)), case, device)), "fits": True}
        except torch.cuda.OutOfMemoryError:
            return {"seconds": [], "fits": False}


def kernels(device: torch.device) -> dict[str, Any]:
    """FLOP/s by size and type, bytes/s by kind, and the seconds of the smallest operator, on this device."""
    half = torch.float16 if device.type == "cuda" else torch.bfloat16
    sizes = SIZES if device.type == "cuda" else SIZES[:2]
    rates: dict[str, Any] = {}
    for name, dtype in (("products", torch.float32), ("half", half)):
        rates[name] = []
        for size in sizes:
            one = torch.randn(size, size, device=device, dtype=dtype)
            rates[name].append([size, 2 * size**3 / _each(partial(torch.mm, one, one), device)])
    values = torch.randn(MANY // 4096 if device.type == "cpu" else MANY // 1024, 1024, device=device)
    moved = 2 * values.numel() * values.element_size()
    norm = torch.nn.LayerNorm(1024, device=device)
    with torch.no_grad():
        rates["bandwidth"] = {
            "elementwise": moved / _each(lambda: values.mul(2.0), device),
            "softmax": moved / _each(lambda: values.softmax(-1), device),
            "norm": moved / _each(lambda: norm(values), device),
        }
        small = torch.zeros(8, device=device)
        rates["call_seconds"] = _each(lambda: small.add(1.0), device)
    return {"rates": rates}


def _updates(loaded: LoadedRecipe, case: Case, device: torch.device) -> Iterator[float]:
    recipe, settings = loaded.recipe, case.settings
    assert settings.micro_batch
    state = build(loaded, settings, device)
    batch = to_device(recipe.batch(settings.micro_batch), device)
    began = time.perf_counter()
    for number in range(WARM + 10_000):
        if number == WARM:
            began = time.perf_counter()
        if number >= WARM + LEAST and time.perf_counter() - began > SECONDS:
            return
        start = time.perf_counter()
        update(
            state.model,
            state.optimizer,
            recipe.loss,
            ((batch, settings.micro_batch) for _ in range(2)),
            samples=2 * settings.micro_batch,
            mixed_precision=state.mixed_precision,
            clip_norm=Parts.of(recipe).clip_norm,
        )
        _wait(device)
        if number >= WARM:
            yield time.perf_counter() - start


def _each(run: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one of many in a row, after as many that do not count."""
    took, times = 0.0, 1
    while took < 0.2:
        times *= 2
        _wait(device)
        start = time.perf_counter()
        for _ in range(times):
            run()
        _wait(device)
        took = time.perf_counter() - start
    return took / times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> int:
    question = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    device, case = torch.device(question["device"]), question["case"]
    try:
        answer = clocked(Case.from_json(case), device) if case else kernels(device)
    except Exception as error:  # noqa: BLE001 - one case that fails is a row of the table
        answer = {"error": f"{type(error).__name__}: {str(error)[:400]}"}
    json.dump(answer, answers)
    answers.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
