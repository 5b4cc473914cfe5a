"""The client of a child process that traces updates on a simulated GPU. This module does not import torch."""

from __future__ import annotations

import functools
import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Literal

from shoestring.base import config, errors
from shoestring.base.errors import ShoestringError, TraceError
from shoestring.base.settings import Settings
from shoestring.hardware.catalog import Device
from shoestring.planning.trace import child_process, waiting
from shoestring.planning.trace.child_process import ChildCopy, ChildProcess
from shoestring.planning.trace.record import Facts, Trace
from shoestring.planning.trace.stored import StoredTraces
from shoestring.recipe.options import LoadedRecipe

_TRACED_AS = {(8, 9): (8, 6), (9, 0): (8, 0)}
"""Compute capabilities with the traces of another one: the kernels that they choose have the same memory
(`attention.py`, `attention_scratch.py`, `experts.py`)."""


class Tracer:
    """Traces updates of one recipe, any number of times, in one child process.

        with Tracer(loaded) as tracer:
            trace = tracer.trace(Settings(micro_batch=8, precision="fp16"), accumulate=4, device=catalog_entry)

    Tracing has its own process because torch may abort and because a simulated device cannot be unregistered.
    """

    def __init__(self, loaded: LoadedRecipe, stored: StoredTraces | None = None) -> None:
        """`stored` has the traces of an earlier process, and stores those of this one."""
        self._loaded = loaded
        self.stored = stored
        self._start: Callable[[], ChildProcess | ChildCopy] = functools.partial(child_process.start, loaded)
        self._child: ChildProcess | ChildCopy | None = None
        self._facts: Facts | None = None
        self.opening_seconds = 0.0
        """The seconds in which the child imported torch, read the data and built the model, once `facts` are known."""
        self.host_work: Mapping[str, float] = {}
        """The seconds of the host's work for one of an update's samples, by name, once `facts` are known."""
        self._lock = threading.Lock()
        """Held during a request: a thread may still wait for the response to one that nobody needs any more."""
        self._copy: Tracer | None = None
        self._has_traced = False
        self._traces: dict[str, Trace] = {}
        """The traces so far, by their requests: candidates may differ only in settings that a trace does not have."""

    @property
    def facts(self) -> Facts:
        """The facts of the recipe. Raises the recipe's own UsageError or DataError, or TraceError."""
        if self._facts is None:
            start = time.monotonic()
            response = self._request(
                {"do": "open", "reference": self._loaded.reference, "options": config.as_json(self._loaded.options)}
            )
            self.opening_seconds = time.monotonic() - start
            self.host_work = response["host_work"]
            self._facts = Facts.from_json(response["facts"])
        return self._facts

    def copy(self) -> Tracer | None:
        """Return a tracer for another thread, with a copy of the child, which has opened the recipe; they share traces.

        The first call makes the copy; None if the child has traced before: threads of torch's that are not in the copy
        run its backward. The copy ends with this tracer. Raises what `facts` raises.
        """
        facts = self.facts
        if self._copy is None and not self._has_traced and isinstance(self._child, ChildProcess):
            child = self._child.copy()
            if child is None:
                raise self._death_error()
            self._copy = Tracer(self._loaded, self.stored)
            self._copy._child = child
            self._copy._start = _raise_without_copy
            self._copy._facts, self._copy._traces = facts, self._traces
        return self._copy

    def trace(
        self,
        settings: Settings,
        *,
        accumulate: int,
        device: Device,
        gpus: int = 1,
        torch_ddp: bool = False,
        loading: Literal["engine", "transformers"] = "engine",
        options: Mapping[str, Any] | None = None,
    ) -> Trace:
        """Trace two updates as one of `gpus` such devices would run them, the second with at most two microbatches in
        each logical shard.

        `accumulate` is the number of microbatches of a logical shard; `torch_ddp` says that a loop of one's own makes
        the updates, with the model in DistributedDataParallel; `loading`, whether the engine brings the weights to the
        device or transformers and peft do (`loading.py`). `settings` must set the microbatch and the precision;
        `options` are changes to the options of the recipe, and the trace keeps the facts of the unchanged recipe.
        Raises TraceError naming the operator or the line that cannot be traced.
        """
        return self._cached_trace(
            {
                "do": "trace",
                "settings": settings.json(),
                "accumulate": accumulate,
                "capability": _traced_capability(device),
                "gpus": gpus,
                "torch_ddp": torch_ddp,
                "loading": loading,
                "options": config.as_json(options or {}),
            }
        )

    def _cached_trace(self, request: dict[str, Any]) -> Trace:
        """Return the trace of a request, which may have been made before."""
        facts = self.facts  # opens the recipe
        key = json.dumps(request, sort_keys=True)
        if key in self._traces:
            return self._traces[key]
        if not self.stored or not (trace := self.stored.get(facts, request)):
            trace = Trace.from_json(self._request(request)["trace"])
            if self.stored:
                self.stored.add(facts, request, trace)
        self._traces[key] = trace
        return trace

    def trace_inference(
        self, settings: Settings, device: Device, *, work: Literal["prediction", "evaluation", "answers"] = "prediction"
    ) -> Trace:
        """Trace predictions for two batches, evaluations of them, or answering all held-out prompts twice, as forward
        phases of two updates.

        `settings` must set the microbatch and the precision. Raises TraceError as `trace` does.
        """
        return self._cached_trace(
            {
                "do": "trace inference",
                "work": work,
                "settings": settings.json(),
                "capability": _traced_capability(device),
                "options": {},
            }
        )

    def close(self) -> None:
        """Kill the child, even while it is handling a request."""
        if self._copy:
            self._copy.close()
        # A second interruption may end `kill` after the process was reaped: it must not be killed twice.
        child, self._child = self._child, None
        if child:
            child.kill()

    def __enter__(self) -> Tracer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _request(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self._child = self._child or self._start()
            self._has_traced = self._has_traced or request["do"] != "open"
            try:
                response = self._child.request(request, *self._work(request))
            except BaseException:
                # After an interruption, the pending response would be read as the response to the next request. Another
                # child has to open the recipe first.
                self.close()
                self._facts = None
                raise
        if response is None:
            raise self._death_error()
        if "error" in response:
            raise _rebuild_error(response["error"])
        return response

    def _death_error(self) -> TraceError:
        assert self._child
        dead_child, self._child, self._facts = self._child, None, None
        return dead_child.death_error()

    def _work(self, request: Mapping[str, Any]) -> tuple[str, float]:
        """Return what is done for the request, and its limit in seconds: reading data may take any time."""
        if request["do"] == "open":
            return f"reading the data and building the model of {self._loaded.name}", math.inf
        return f"tracing {request['settings']['micro_batch']} samples of {self._loaded.name}", waiting.limit_seconds()


def _traced_capability(device: Device) -> tuple[int, int] | None:
    """Return the compute capability to trace for: one for all devices whose traces are equal, so that they share them.

    A comparison of targets would otherwise trace the same update for an A10 and an L4, an A100 and an H100.
    """
    capability = device.compute_capability
    return capability and _TRACED_AS.get(capability, capability)


def _raise_without_copy() -> ChildCopy:
    raise TraceError("the copy of the process that traces has ended", hint="trace in that process itself")


def _rebuild_error(fields: dict[str, Any]) -> ShoestringError:
    """Return the child's error as an exception of its original class."""
    kind = getattr(errors, fields["kind"], TraceError)
    error: ShoestringError = kind(fields["message"], problems=fields["problems"], hint=fields["hint"])
    return error
