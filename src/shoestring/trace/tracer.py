"""The client of a child process that traces updates on a simulated GPU. This module does not import torch."""

from __future__ import annotations

import gc
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from shoestring import config, errors, streams
from shoestring.errors import ShoestringError, TraceError
from shoestring.hardware.catalog import Device
from shoestring.recipe.options import LoadedRecipe
from shoestring.settings import Settings
from shoestring.trace import waiting
from shoestring.trace.record import Facts, Trace
from shoestring.trace.stored import StoredTraces

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)')


class Tracer:
    """Traces updates of one recipe, any number of times, in one child process.

        with Tracer(loaded) as tracer:
            trace = tracer.trace(Settings(micro_batch=8, precision="fp16"), accumulate=4, device=catalog_entry)

    Tracing has its own process because torch may abort and because a simulated device cannot be unregistered. The child
    loads a recipe again by its reference; a live object is inherited by `fork`. If this process has imported torch, the
    child inherits it by `fork` too, since the import takes most of the time.
    """

    def __init__(self, loaded: LoadedRecipe, stored: StoredTraces | None = None) -> None:
        """`stored` has the traces of an earlier process, and stores those of this one."""
        self._loaded = loaded
        self.stored = stored
        self._child: _Child | None = None
        self._facts: Facts | None = None
        self._traces: dict[str, Trace] = {}
        """The traces so far, by their requests: candidates may differ only in settings that a trace does not have."""

    @property
    def facts(self) -> Facts:
        """The facts of the recipe. Raises the recipe's own UsageError or DataError, or TraceError."""
        if self._facts is None:
            response = self._request(
                {"do": "open", "reference": self._loaded.reference, "options": config.as_json(self._loaded.options)}
            )
            self._facts = Facts.from_json(response["facts"])
        return self._facts

    def trace(
        self,
        settings: Settings,
        *,
        accumulate: int,
        device: Device,
        gpus: int = 1,
        torch_ddp: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> Trace:
        """Trace two updates as one of `gpus` such devices would run them, the second with at most two microbatches in
        each logical shard.

        `accumulate` is the number of microbatches of a logical shard; `torch_ddp` says that a loop of one's own makes
        the updates, with the model in DistributedDataParallel. `settings` must set the microbatch and the precision;
        `options` are changes to the options of the recipe, and the trace keeps the facts of the unchanged recipe.
        Raises TraceError naming the operator or the line that cannot be traced.
        """
        facts = self.facts
        request = {
            "do": "trace",
            "settings": settings.json(),
            "accumulate": accumulate,
            "capability": device.compute_capability,
            "gpus": gpus,
            "torch_ddp": torch_ddp,
            "options": config.as_json(options or {}),
        }
        key = json.dumps(request, sort_keys=True)
        if key in self._traces:
            return self._traces[key]
        if not self.stored or not (trace := self.stored.get(facts, request)):
            trace = Trace.from_json(self._request(request)["trace"])
            if self.stored:
                self.stored.add(facts, request, trace)
        self._traces[key] = trace
        return trace

    def trace_inference(self, settings: Settings, device: Device) -> Trace:
        """Trace predictions for two batches, as forward phases of two updates.

        `settings` must set the microbatch and the precision. Raises TraceError as `trace` does.
        """
        _ = self.facts  # opens the recipe
        request = {
            "do": "trace inference",
            "settings": settings.json(),
            "capability": device.compute_capability,
            "options": {},
        }
        return Trace.from_json(self._request(request)["trace"])

    def close(self) -> None:
        """Kill the child, even while it is handling a request."""
        if self._child:
            self._child.kill()
            self._child = None

    def __enter__(self) -> Tracer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _request(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._child is None:
            if not self._loaded.reference:
                self._child = _fork(self._loaded)
            else:
                self._child = _fork(None) if _torch_can_be_shared() else _spawn()
        try:
            response = self._child.request(request, *self._work(request))
        except BaseException:
            # After an interruption, the pending response would be read as the response to the next request.
            self.close()
            raise
        if response is None:
            dead_child, self._child, self._facts = self._child, None, None
            raise dead_child.death_error()
        if "error" in response:
            raise _rebuild_error(response["error"])
        return response

    def _work(self, request: Mapping[str, Any]) -> tuple[str, float]:
        """Return what is done for the request, and its limit in seconds: reading data may take any time."""
        if request["do"] == "open":
            return f"reading the data and building the model of {self._loaded.name}", math.inf
        return f"tracing {request['settings']['micro_batch']} samples of {self._loaded.name}", waiting.limit_seconds()


class _Child:
    """A process with a pipe for requests and one for responses; `output` is the file of its standard output and error.

    `wait` blocks until the process ends and returns its exit status (negative: a signal).
    """

    def __init__(
        self, pid: int, requests: IO[str], responses: IO[str], output: IO[bytes], wait: Callable[[], int]
    ) -> None:
        self._pid = pid
        self._requests = requests
        self._responses = responses
        self._output = output
        self._wait = wait

    def request(self, request: dict[str, Any], work: str, limit: float) -> dict[str, Any] | None:
        """Send a request and return the response; None if the child died.

        Raises TraceError if `work`, which it asks for, takes longer than `limit` seconds.
        """
        try:
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
        except BrokenPipeError:
            return None
        waiting.wait(self._responses, work, limit)
        line = self._responses.readline()
        response: dict[str, Any] | None = json.loads(line) if line.endswith("\n") else None
        return response

    def kill(self) -> int:
        """Kill the process, which has no state to save, reap it and return its exit status."""
        os.kill(self._pid, signal.SIGKILL)
        return self._reap()

    def death_error(self) -> TraceError:
        """Reap a process that died and return an error with the cause."""
        status = self._reap(close_output=False)
        cause = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        self._output.seek(0)
        output = self._output.read().decode(errors="replace")
        self._output.close()
        last_line = [line for line in output.strip().splitlines() if line][-1:]
        return TraceError(
            f"the process that traces the update died with {cause}{_crash_location(output)}",
            problems=last_line,
            hint="run the recipe's loss on the CPU with a small batch; if that works, report this crash",
        )

    def _reap(self, *, close_output: bool = True) -> int:
        for pipe in (self._requests, self._responses):
            try:
                pipe.close()
            except BrokenPipeError:
                continue
        if close_output:
            self._output.close()
        return self._wait()


def _spawn() -> _Child:
    output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "shoestring.trace"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=output,
        text=True,
        encoding="utf-8",
    )
    assert process.stdin and process.stdout
    return _Child(process.pid, process.stdin, process.stdout, output, process.wait)


def _torch_can_be_shared() -> bool:
    """Return whether this process has imported torch and a forked child can use it.

    A build with CUDA is excluded: it may have threads for each device's backward, which cannot be detected from Python
    and do not exist in a forked child.
    """
    torch = sys.modules.get("torch")
    return torch is not None and threading.active_count() == 1 and not (torch.version.cuda or torch.version.hip)


def _fork(loaded: LoadedRecipe | None) -> _Child:
    """Fork a child that inherits the imported modules and, if given, a live recipe.

    A live recipe is not serialized, as loading it would execute untrusted bytes. Limits of the child: other threads of
    this process do not exist there, so torch must not use its thread pool (one thread); CUDA cannot be used there if
    this process has initialized it (the simulated device does not use it); POSIX only.
    """
    output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
    child_requests, requests = os.pipe()
    responses, child_responses = os.pipe()
    streams.flush()
    collects_garbage = gc.isenabled()
    gc.disable()
    with warnings.catch_warnings():
        # Python 3.12 warns if other threads run; of their locks the child uses only the allocator's.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        # Finalizers of inherited garbage may wait for threads that do not exist here (as a gloo process group does).
        gc.freeze()
    if collects_garbage:
        gc.enable()
    if pid == 0:
        status = 1
        try:
            os.close(requests)
            os.close(responses)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            _serve_forked(child_requests, child_responses, loaded)
            status = 0
        finally:
            # The child must not run the parent's exit handlers or flush its buffers.
            os._exit(status)
    os.close(child_requests)
    os.close(child_responses)

    def wait() -> int:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    return _Child(pid, os.fdopen(requests, "w", encoding="utf-8"), os.fdopen(responses, encoding="utf-8"), output, wait)


def _serve_forked(requests: int, responses: int, loaded: LoadedRecipe | None) -> None:
    import torch

    from shoestring.trace import child

    torch.set_num_threads(1)
    child.serve(os.fdopen(requests, encoding="utf-8"), os.fdopen(responses, "w", encoding="utf-8"), loaded)


def _rebuild_error(fields: dict[str, Any]) -> ShoestringError:
    """Return the child's error as an exception of its original class."""
    kind = getattr(errors, fields["kind"], TraceError)
    error: ShoestringError = kind(fields["message"], problems=fields["problems"], hint=fields["hint"])
    return error


def _crash_location(output: str) -> str:
    """Return ` at file:line in function` of the recipe's innermost frame in the stack trace of a crash."""
    own_folder = str(Path(__file__).parent)
    *_, crashed_thread = output.rpartition("Current thread")
    for frame in _FRAME.finditer(crashed_thread):
        if "/torch/" not in frame["file"] and not frame["file"].startswith(own_folder):
            return f" at {frame['file']}:{frame['line']} in {frame['name']}"
    return ""
