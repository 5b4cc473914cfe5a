"""The child's side of the protocol: one request per line in, one response per line out, both JSON.

{"do": "open", "reference": ..., "options": {...}}      -> {"facts": {...}}
{"do": "copy"}                                          -> {}: another process responds to the spare pipe's requests
{"do": "trace", "settings": {...}, ...}                 -> {"trace": {...}}
{"do": "trace inference", "settings": {...}, ...}       -> {"trace": {...}}
any request                                             -> {"error": {"kind", "message", "problems", "hint"}}
"""

from __future__ import annotations

import dataclasses
import faulthandler
import gc
import json
import os
import signal
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TextIO

from shoestring.base.errors import ShoestringError
from shoestring.base.packages.broken import usable_libraries
from shoestring.base.packages.quiet import quiet_bitsandbytes
from shoestring.base.processes import exit_with_parent
from shoestring.base.settings import Settings
from shoestring.planning.trace.record import Facts, Trace
from shoestring.recipe.finding import load
from shoestring.recipe.losses import losses_by_stage
from shoestring.recipe.options import LoadedRecipe

_OBJECTS_PER_COLLECTION = 50_000


def serve(descriptors: Sequence[int], loaded: LoadedRecipe | None = None) -> None:
    """Respond to each request until the input ends. `loaded` is a recipe that exists only in this process.

    `descriptors` are those of the pipes for requests and responses, and of a second pair for a copy of this process.
    """
    # Signals may reach the whole process group; the parent handles them and kills this process.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    exit_with_parent(os.getppid(), poll=True)  # the parent's thread that started it may end earlier than the parent
    # If torch aborts, the parent reads the line of the recipe's code from the stack on standard error. An inherited
    # faulthandler is enabled anew: other code may have replaced its signal handlers (as Lightning's trainer does).
    faulthandler.disable()
    faulthandler.enable(2)
    quiet_bitsandbytes()
    # The events of a trace, which have no cycles, would make the collector visit all objects again and again. The
    # parent may have paused it altogether, but a recipe's tensors may be in cycles.
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    gc.enable()
    unusable = _import_torch()
    handler = _RequestHandler(loaded)
    pipes, spare = _Pipes.open(*descriptors[:2]), _Pipes.open(*descriptors[2:])
    while line := pipes.requests.readline():
        request = json.loads(line)
        if request["do"] == "copy":
            if is_copy := _fork():
                pipes, spare = spare, pipes
            spare.close()
            if is_copy:
                continue
            response: dict[str, Any] = {}
        else:
            response = _error_response(unusable) if unusable else _response(handler, request)
        print(json.dumps(response), file=pipes.responses, flush=True)


def _import_torch() -> ShoestringError | None:
    """Import torch, which takes about a second, before the first request. Return the error if it cannot be imported."""
    try:
        with usable_libraries():
            import torch
    except ShoestringError as error:
        return error
    torch.set_num_threads(1)  # a process that is forked has none of its pool
    return None


class _Pipes(NamedTuple):
    requests: TextIO
    responses: TextIO

    @classmethod
    def open(cls, requests: int, responses: int) -> _Pipes:
        return cls(os.fdopen(requests, encoding="utf-8"), os.fdopen(responses, "w", encoding="utf-8"))

    def close(self) -> None:
        self.requests.close()
        self.responses.close()


def _fork() -> bool:
    """Copy this process; return whether this is the copy, which ends with the original."""
    original = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: a thread polls for the parent
        is_copy = os.fork() == 0
    if is_copy:
        exit_with_parent(original)
        # torch renews its pool at the first use after a fork, and aborts if two threads of a backward do so at once.
        sys.modules["torch"].set_num_threads(1)
    return is_copy


def _response(handler: _RequestHandler, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return handler.answer(request)
    except ShoestringError as error:
        return _error_response(error)


def _error_response(error: ShoestringError) -> dict[str, Any]:
    fields = {"message": error.message, "problems": list(error.problems), "hint": error.hint}
    return {"error": {"kind": type(error).__name__, **fields}}


class _RequestHandler:
    """Handles the requests for one recipe; the first request sets up the simulated device."""

    def __init__(self, loaded: LoadedRecipe | None) -> None:
        self._loaded = loaded
        self._facts: Facts | None = None
        self._folds = True
        """Whether identical blocks are folded (`folding.py`)."""

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if request["do"] == "open":
            if self._loaded is None:
                self._loaded = load(request["reference"], request["options"])
            self._facts = _open(self._loaded)
            gc.freeze()  # modules and the recipe's data stay
            return {"facts": self._facts.json(), "host_work": _measure_host_work(self._loaded)}
        assert self._loaded and self._facts
        loaded = self._loaded.replace(**request["options"]) if request["options"] else self._loaded
        trace = _trace(loaded, self._facts, request, folds=self._folds)
        if trace is None:
            self._folds = False  # other settings would hardly change that
            trace = _trace(loaded, self._facts, request, folds=False)
        assert trace
        return {"trace": trace.json()}


def _measure_host_work(loaded: LoadedRecipe) -> dict[str, float]:
    """Return the seconds of the host's work for a sample; nothing if it cannot run here."""
    if loaded.parts.learning.host_work is None:
        return {}
    try:
        return dict(loaded.parts.learning.host_work())
    except Exception:  # noqa: BLE001 - a plan does not need it; training reports the error
        return {}


def _open(loaded: LoadedRecipe) -> Facts:
    """Read the recipe's facts and set up the simulated device."""
    from shoestring.techniques import deferred_compiler

    deferred_compiler.defer_compiler()
    from shoestring.planning.trace import (
        alignment,
        attention,
        autocast,
        experts,
        facts,
        fused,
        kernels,
        layouts,
        linear,
        masks,
        matching,
        recurrent,
        simulated_device,
    )
    from shoestring.planning.trace.explain import explain_errors

    with explain_errors():
        recipe_facts = facts.read(loaded)
    with warnings.catch_warnings():
        # When the CPU stands in for the simulated device, torch warns that the CPU's own kernels are replaced.
        warnings.simplefilter("ignore", UserWarning)
        simulated_device.set_up()
        for module in (autocast, attention, kernels, layouts, linear, fused, alignment, experts, masks, matching):
            module.set_up()
        recurrent.set_up()
    return recipe_facts


def _trace(loaded: LoadedRecipe, facts: Facts, request: Mapping[str, Any], *, folds: bool) -> Trace | None:
    """Return the trace that is requested; None if it has to be made without folding."""
    from shoestring.planning.trace import inference, two_devices, update
    from shoestring.planning.trace.explain import explain_errors
    from shoestring.planning.trace.facts import first_batches
    from shoestring.planning.trace.folding import NotRepeatableError
    from shoestring.planning.trace.recorder import Recorder
    from shoestring.planning.trace.simulated_place import traced_shards
    from shoestring.techniques import deferred_compiler, memory_format

    recorder = Recorder()
    settings = Settings.from_json(request["settings"])
    assert settings.micro_batch is not None and settings.precision is not None
    capability = tuple(request["capability"]) if request["capability"] else None
    if request["do"] == "trace inference":
        with explain_errors(recorder):
            storages, events = inference.run(recorder, loaded, settings, work=request["work"], capability=capability)
        return Trace(
            micro_batch=settings.micro_batch,
            microbatches=1,
            precision=settings.precision,
            facts=facts,
            bounds=recorder.bounds,
            storages=storages,
            events=events,
        )
    with explain_errors(recorder), memory_format.explaining_views(settings.memory_format):
        try:
            record = update.run(
                recorder,
                loaded,
                settings,
                accumulate=request["accumulate"],
                capability=capability,
                gpus=request["gpus"],
                torch_ddp=request["torch_ddp"],
                way_of_loading=request["loading"],
                folds=folds,
                is_pretrained=facts.is_pretrained,
            )
        except NotRepeatableError:
            return None
    shards = traced_shards(settings, request["gpus"], torch_ddp=request["torch_ddp"])
    trace = Trace(
        micro_batch=settings.micro_batch,
        microbatches=update.traced_microbatches(settings, request["accumulate"]) * shards,
        stages=len(losses_by_stage(loaded.recipe)),
        precision=settings.precision,
        facts=_add_compiler_bytes(facts)
        if settings.compile == "yes" and not deferred_compiler.is_compiler_loaded()
        else facts,
        first_batches=first_batches(loaded.recipe, settings.micro_batch),
        bounds=recorder.bounds,
        host_bytes=recorder.host_bytes,
        draws_random=recorder.draws_random,
        loading_host_bytes=recorder.loading_host_bytes,
        **record._asdict(),
    )
    return two_devices.divided(trace, recorder.log) if recorder.log.divides else trace


def _add_compiler_bytes(facts: Facts) -> Facts:
    """Return the facts of a process that compiles, given the facts read in a process without torch's compiler."""
    from shoestring.techniques import deferred_compiler

    return dataclasses.replace(facts, process_bytes=facts.process_bytes + deferred_compiler.BYTES)
