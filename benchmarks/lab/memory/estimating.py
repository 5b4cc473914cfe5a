"""Estimate the memory of configurations: a process that answers questions, one JSON on each line.

    CUDA_VISIBLE_DEVICES= python -m benchmarks.lab.memory.estimating < QUESTIONS > ANSWERS

A question contains `configuration` and `memory_bytes`, of each GPU. An answer contains the ranges `allocated` and
`reserved` (low, value, high), `loading` and `parts`, and with streamed blocks their bytes `host` in host memory; all in
bytes; or `error`.
"""

import dataclasses
import json
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.lab.memory import requested
from benchmarks.lab.memory.configurations import Configuration
from benchmarks.lab.memory.measuring import MICROBATCHES, UPDATES, without_initial_values
from benchmarks.lab.memory.serving import serve

from shoestring.base.errors import ShoestringError
from shoestring.base.settings import Settings
from shoestring.hardware.catalog import Device
from shoestring.hardware.targets import find as find_target
from shoestring.planning.candidates import UNTRACED
from shoestring.planning.estimate.lengths import VaryingLengths
from shoestring.planning.estimate.memory import memory
from shoestring.planning.estimate.streaming import host_bytes
from shoestring.planning.trace import Tracer, child_process
from shoestring.planning.varying_lengths import SHORTER, worst_order
from shoestring.recipe.options import LoadedRecipe

EFFECTIVE_BATCH = 64
"""Of the loaded recipe; a trace has the number of microbatches that it is asked for."""


class Estimator:
    """Estimates configurations; consecutive ones of the same recipe share a tracing process."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._stack = ExitStack()
        self._tracer: Tracer | None = None
        self._key = ""

    def estimate(self, configuration: Configuration, memory_bytes: int) -> dict[str, Any]:
        settings = configuration.settings
        key = json.dumps([configuration.model, dict(configuration.options)])
        if self._tracer is None or key != self._key:
            self._stack.close()
            loaded = configuration.load(Path(self._folder.name), EFFECTIVE_BATCH)
            self._tracer, self._key = self._stack.enter_context(open_tracer(loaded)), key
        device = dataclasses.replace(find_target(configuration.on).device, memory_bytes=memory_bytes)
        gpus = settings.gpus or 1
        traced = settings.replace(**UNTRACED)
        if configuration.work == "updates":
            trace = self._tracer.trace(traced, accumulate=MICROBATCHES, device=device, gpus=gpus)
        else:
            trace = self._tracer.trace_inference(traced, device, work="evaluation")
        varying = self._varying(configuration, traced, device) if configuration.lengths else None
        breakdown = memory(trace, device, allocator=settings.allocator or "segments", gpus=gpus, varying=varying)
        answer = {
            "allocated": dataclasses.asdict(breakdown.allocated),
            "reserved": dataclasses.asdict(breakdown.reserved),
            "loading": breakdown.loading_bytes - sum(part.bytes for part in breakdown.parts if part.name in _OUTSIDE),
            "parts": {part.name: part.bytes for part in breakdown.parts if part.name not in _OUTSIDE},
        }
        if settings.streamed_blocks:
            answer["host"] = host_bytes(trace, settings.streamed_blocks)
        return answer | ({"requests": requested.estimated(trace, device, UPDATES)} if configuration.records else {})

    def _varying(self, configuration: Configuration, settings: Settings, device: Device) -> VaryingLengths:
        """Return the configuration's own lengths, in their order and in the worst one."""
        assert self._tracer
        longest = configuration.options["seq_len"]
        shorter = round(longest * SHORTER)
        trace = self._tracer.trace(settings, accumulate=MICROBATCHES, device=device, options={"seq_len": shorter})
        likely = [[length / longest for length in lengths] for lengths in configuration.lengths]
        return VaryingLengths(shorter=trace, share=shorter / longest, likely=likely, worst=worst_order(likely))


def open_tracer(loaded: LoadedRecipe) -> Tracer:
    """Return a tracer whose process is forked from this one, which has imported transformers.

    A tracer does so by itself, but not for a build of PyTorch with CUDA, which may have threads of a device. Here no
    device is visible.
    """
    tracer = Tracer(loaded)
    tracer._start = lambda: child_process._fork(None)
    return tracer


_OUTSIDE = ("CUDA context", "NCCL buffers")
"""The parts outside of PyTorch's allocator."""


def answer(estimator: Estimator, question: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return estimator.estimate(Configuration.from_json(question["configuration"]), question["memory_bytes"])
    except ShoestringError as error:
        return {"error": "; ".join([error.message, *error.problems, *([error.hint] if error.hint else [])])[:1000]}


def main() -> int:
    with without_initial_values():  # in the processes that trace as well, which are forked from this one
        return serve(partial(answer, Estimator()))


if __name__ == "__main__":
    raise SystemExit(main())
