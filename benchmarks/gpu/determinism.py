"""Compute the gradients of an update several times on a GPU, and compare their bits.

    python -m benchmarks.gpu.determinism [--json OUT] [--seconds 90] [--dry-run]

Every case computes the same update with the kernels of training, and for comparison with those that torch selects in
its mode with warnings, by which attention is not deterministic. A different number of other kernels runs at the same
time on a second stream, so that blocks finish in another order. The exit status is 2 without a GPU, and 1 if bits of
training differ.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from benchmarks.gpu import harness
from benchmarks.gpu.cases import Case
from benchmarks.gpu.measure import MAX_OVERFLOWS
from torch import Tensor

from shoestring.base.errors import RunError
from shoestring.training.data.batches import to_device
from shoestring.training.data.seeding import seed_all
from shoestring.training.engine import determinism
from shoestring.training.engine.building import build
from shoestring.training.engine.determinism import deterministic
from shoestring.training.engine.update import add_gradients, update

REPETITIONS = 6
_MIN_SECONDS = 15
"""No case is started with less remaining time."""
MODELS = ("gpt2", "bert-base", "temporal", "cloud", "t5-small", "vqa", "vit-base", "legal", "finetune", "modernbert")
"""With flash attention, memory-efficient attention, recurrent layers, convolutions, relative positions."""


@contextmanager
def mode_with_warnings() -> Iterator[None]:
    """Select the deterministic kernels that torch selects by itself in its mode with warnings."""
    with mock.patch.object(determinism, "deterministic_attention", nullcontext), deterministic():
        yield


def measure(case: Case, device: torch.device) -> dict[str, Any]:
    """Return the row of a case: how many repetitions have the bits of the first one, for both ways."""
    row: dict[str, Any] = {"id": case.id, **case.json(), "repetitions": REPETITIONS - 1}
    with tempfile.TemporaryDirectory() as folder:
        loaded = case.load(Path(folder))
        state = build(loaded, case.settings, device)
        _adjust_loss_scale(case, loaded.recipe, state, device)
        for name, way in (("equal", deterministic), ("equal_with_warnings", mode_with_warnings)):
            with way(), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                row[name], row[f"{name}_difference"] = _repeat(case, loaded.recipe, state, device)
            row[f"{name}_warnings"] = sorted({_operator(str(warning.message)) for warning in caught} - {""})
    return row


def _adjust_loss_scale(case: Case, recipe: Any, state: Any, device: torch.device) -> None:
    """Make updates until one does not overflow: gradients that are not finite are equal to nothing."""
    size = case.settings.micro_batch or 1
    batch = to_device(recipe.batch(size), device)
    for _ in range(MAX_OVERFLOWS):
        result = update(
            state.model,
            state.optimizer,
            recipe.loss,
            ((batch, size) for _ in range(2)),
            samples=2 * size,
            mixed_precision=state.mixed_precision,
        )
        if result.stepped:
            return
    raise RunError(f"the gradients of {MAX_OVERFLOWS} updates overflowed")


def _repeat(case: Case, recipe: Any, state: Any, device: torch.device) -> tuple[int, float]:
    """Return how many repetitions have the gradients of the first one, and the largest relative difference."""
    size = case.settings.micro_batch or 1
    batch = to_device(recipe.batch(size), device)
    first: list[Tensor] = []
    equal, difference = 0, 0.0
    side = torch.cuda.Stream() if device.type == "cuda" else None
    load = torch.randn(2048, 2048, device=device)
    for number in range(REPETITIONS):
        seed_all(0)
        if side:
            with torch.cuda.stream(side):
                for _ in range(5 * number):
                    load @ load
        add_gradients(
            state.model,
            recipe.loss,
            ((batch, size) for _ in range(2)),
            samples=2 * size,
            mixed_precision=state.mixed_precision,
        )
        if device.type == "cuda":
            torch.cuda.synchronize()
        gradients = [parameter.grad for parameter in state.model.parameters() if parameter.grad is not None]
        state.model.zero_grad(set_to_none=True)
        if not first:
            first = gradients
            continue
        if all(torch.equal(a, b) for a, b in zip(first, gradients, strict=True)):
            equal += 1
        else:
            norm = sum(float(a.double().norm() ** 2) for a in first) ** 0.5
            change = sum(float((a.double() - b.double()).norm() ** 2) for a, b in zip(first, gradients, strict=True))
            difference = max(difference, change**0.5 / norm if norm else math.inf)
    return equal, difference


def _operator(message: str) -> str:
    """Return the operator that a warning of torch calls not deterministic; empty for other warnings."""
    match = re.match(r"(.*?) (?:does not have a deterministic|defaults to a non-deterministic)", message)
    return match[1] if match else ""


def answer_question() -> None:
    """Measure the case that comes as JSON on standard input, and write its row to standard output."""
    question = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries must not mix with the answer
    json.dump(measure(Case.from_json(question["case"]), torch.device(question["device"])), answers)
    answers.close()


def main() -> int:
    parser = harness.build_parser(__doc__, file="gpu_determinism.json", seconds=90)
    parser.add_argument("--answer", action="store_true", help="measure one case: see answer_question()")
    arguments = parser.parse_args()
    if arguments.answer:
        answer_question()
        return 0
    selection = harness.select_cases(dry_run=arguments.dry_run)
    if selection is None:
        return 2
    all_cases, gpu, kind = selection
    end = time.monotonic() + arguments.seconds
    by_model: dict[str, Case] = {}
    for case in all_cases:
        by_model.setdefault(case.model, case)
    selected = all_cases if arguments.dry_run else [by_model[name] for name in MODELS if name in by_model]
    rows: list[dict[str, Any]] = []
    lock = threading.Lock()

    def measure_row(case: Case) -> None:
        seconds_left = end - time.monotonic()
        if case.missing or seconds_left < _MIN_SECONDS:
            return
        question = {"case": case.json(), "device": kind}
        row = harness.run_module("determinism", question, seconds_left, "--answer")
        if row.get("error") == harness.TIME_LIMIT:
            row = {"id": case.id, "skipped": row["error"]}
        elif "error" in row:
            row |= {"id": case.id, "equal": 0, "repetitions": REPETITIONS - 1}
        with lock:
            rows.append(row)
            harness.write_results(arguments.json, gpu, {"rows": rows})
            print(_format_row(row), flush=True)

    with ThreadPoolExecutor(3 if gpu.memory_bytes >= harness.LARGE_MEMORY_BYTES and kind == "cuda" else 1) as pool:
        list(pool.map(measure_row, selected))
    return 0 if all(row["equal"] == row["repetitions"] for row in rows if "skipped" not in row) else 1


def _format_row(row: dict[str, Any]) -> str:
    if "skipped" in row:
        return f"skipped  {row['id']}: {row['skipped']}"
    verdict = "equal" if row["equal"] == row["repetitions"] else "DIFFERENT"
    text = f"{verdict}  {row['id']}: {row['equal']} of {row['repetitions']} repetitions have the same bits"
    if "error" in row:
        return f"{text}; {row['error']}"
    operators = ", ".join(row["equal_warnings"])
    text += f", with torch's own choice of kernels {row['equal_with_warnings']}"
    return f"{text}; not deterministic: {operators}" if operators else text


if __name__ == "__main__":
    raise SystemExit(main())
