"""The child process that traces: how it is started, asked, copied and ended. This module does not import torch."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

from shoestring.base import streams
from shoestring.base.errors import TraceError
from shoestring.planning.trace import waiting
from shoestring.recipe.options import LoadedRecipe

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)')


def start(loaded: LoadedRecipe) -> ChildProcess:
    """Start a process that loads the recipe again by its reference, or inherits a live object by `fork`.

    If this process has imported torch, the child inherits it by `fork` too, since the import takes most of the time.
    A live object is sent to a new process if torch could not compute gradients in a forked one.

    Raises TraceError if the object would have to be sent and cannot be serialized.
    """
    if not loaded.reference:
        return _fork(loaded) if _backward_works_after_fork() else _spawn(loaded)
    return _fork(None) if _torch_can_be_shared() else _spawn()


class _Pipes(NamedTuple):
    """A pipe for requests and one for responses: the ends of this process, and descriptors of the child's."""

    requests: IO[str]
    responses: IO[str]
    child_requests: int
    child_responses: int

    @classmethod
    def create(cls) -> _Pipes:
        child_requests, requests = os.pipe()
        responses, child_responses = os.pipe()
        return cls(
            os.fdopen(requests, "w", encoding="utf-8"),
            os.fdopen(responses, encoding="utf-8"),
            child_requests,
            child_responses,
        )

    def close_own_ends(self) -> None:
        for pipe in (self.requests, self.responses):
            try:
                pipe.close()
            except BrokenPipeError:
                continue

    def close_child_ends(self) -> None:
        os.close(self.child_requests)
        os.close(self.child_responses)


class ChildProcess:
    """A child process; `output` is the file of its standard output and error.

    `wait` blocks until the process ends and returns its exit status (negative: a signal).
    """

    def __init__(self, pid: int, pipes: _Pipes, spare: _Pipes, output: IO[bytes], wait: Callable[[], int]) -> None:
        """`spare` are the pipes of a copy."""
        self._pid = pid
        self._pipes = pipes
        self._spare = spare
        self._output = output
        self._wait = wait

    def request(self, request: dict[str, Any], work: str, limit: float) -> dict[str, Any] | None:
        """Send a request and return the response; None if the child died.

        Raises TraceError if `work`, which it asks for, takes longer than `limit` seconds.
        """
        return _request(self._pipes, request, work, limit)

    def copy(self) -> ChildCopy | None:
        """Have the child copy itself by `fork`; None if it died. It may be called once."""
        response = self.request({"do": "copy"}, "copying the process that traces", waiting.limit_seconds())
        return None if response is None else ChildCopy(self._spare)

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
        self._pipes.close_own_ends()
        self._spare.close_own_ends()
        if close_output:
            self._output.close()
        return self._wait()


class ChildCopy:
    """A copy of a child process, which ends with it."""

    def __init__(self, pipes: _Pipes) -> None:
        self._pipes = pipes

    def request(self, request: dict[str, Any], work: str, limit: float) -> dict[str, Any] | None:
        """Do what `ChildProcess.request` does."""
        return _request(self._pipes, request, work, limit)

    def kill(self) -> None:
        """Let the process end after the request that it is handling."""
        self._pipes.close_own_ends()

    def death_error(self) -> TraceError:
        """Return an error without the cause, which only the parent of the process has."""
        return TraceError("the copy of the process that traces died", hint="trace in that process itself")


def _request(pipes: _Pipes, request: dict[str, Any], work: str, limit: float) -> dict[str, Any] | None:
    try:
        pipes.requests.write(json.dumps(request) + "\n")
        pipes.requests.flush()
    except BrokenPipeError:
        return None
    waiting.wait(pipes.responses, work, limit)
    line = pipes.responses.readline()
    response: dict[str, Any] | None = json.loads(line) if line.endswith("\n") else None
    return response


def _spawn(live: LoadedRecipe | None = None) -> ChildProcess:
    """Start a new interpreter. It reads a live recipe from its standard input."""
    with contextlib.ExitStack() as stack:
        serialized = stack.enter_context(_serialize(live)) if live else subprocess.DEVNULL
        output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        pipes, spare = _Pipes.create(), _Pipes.create()
        descriptors = (*pipes[2:], *spare[2:])
        # A recipe imports what it can import here, and nothing else: `-P` adds no folder.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "shoestring.planning.trace", *map(str, descriptors), *sys.path],
            stdin=serialized,
            stdout=output,
            stderr=output,
            pass_fds=descriptors,
            process_group=0,  # Ctrl-C is for this process, which ends the other one
        )
    pipes.close_child_ends()
    spare.close_child_ends()
    return ChildProcess(process.pid, pipes, spare, output, process.wait)


def _serialize(live: LoadedRecipe) -> IO[bytes]:
    """Return an anonymous file with a live recipe, for a process of our own: nobody else can write to it.

    cloudpickle includes the code of classes and functions of a notebook, which cannot be imported elsewhere.
    """
    import cloudpickle

    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    try:
        cloudpickle.dump(live, file)
    except Exception as error:
        file.close()
        raise TraceError(
            f"{live.name} cannot be sent to the process that traces: {type(error).__name__}: {error}",
            problems=["this process has used its GPU, so a copy of it cannot trace"],
            hint="put the recipe into a file and pass its path, or estimate in a new process",
        ) from error
    file.seek(0)
    return file


def _backward_works_after_fork() -> bool:
    """Return whether torch computes gradients in a forked child of this process.

    It refuses to once a backward of this process has started threads for GPUs (pytorch.org/docs, "Autograd and Fork"),
    which only a child can find out.
    """
    torch = sys.modules.get("torch")
    if torch is None or not (torch.version.cuda or torch.version.hip):
        return True
    pid = _os_fork()
    if pid == 0:
        status = 1
        try:
            torch.set_num_threads(1)  # renews torch's pool, before threads of the backward do so at once (`child.py`)
            torch.zeros(1, requires_grad=True).sum().backward()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _torch_can_be_shared() -> bool:
    """Return whether this process has imported torch and a forked child can use it.

    A build with CUDA is excluded: it may have threads for each device's backward, which cannot be detected from Python
    and do not exist in a forked child.
    """
    torch = sys.modules.get("torch")
    return torch is not None and threading.active_count() == 1 and not (torch.version.cuda or torch.version.hip)


def _fork(loaded: LoadedRecipe | None) -> ChildProcess:
    """Fork a child that inherits the imported modules and, if given, a live recipe.

    Limits of the child: other threads of this process do not exist there, so torch must not use its thread pool (one
    thread); CUDA cannot be used there if this process has initialized it (the simulated device does not use it); POSIX
    only.
    """
    output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
    pipes, spare = _Pipes.create(), _Pipes.create()
    streams.flush()
    collects_garbage = gc.isenabled()
    gc.disable()
    pid = _os_fork()
    if pid == 0:
        # Finalizers of inherited garbage may wait for threads that do not exist here (as a gloo process group does).
        gc.freeze()
    if collects_garbage:
        gc.enable()
    if pid == 0:
        status = 1
        try:
            pipes.close_own_ends()
            spare.close_own_ends()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            _serve_forked((*pipes[2:], *spare[2:]), loaded)
            status = 0
        finally:
            # The child must not run the parent's exit handlers or flush its buffers.
            os._exit(status)
    pipes.close_child_ends()
    spare.close_child_ends()

    def wait() -> int:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    return ChildProcess(pid, pipes, spare, output, wait)


def _os_fork() -> int:
    with warnings.catch_warnings():
        # Python 3.12 warns if other threads run; of their locks the child uses only the allocator's.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _serve_forked(descriptors: tuple[int, int, int, int], loaded: LoadedRecipe | None) -> None:
    from shoestring.planning.trace import child

    child.serve(descriptors, loaded)


def _crash_location(output: str) -> str:
    """Return ` at file:line in function` of the recipe's innermost frame in the stack trace of a crash."""
    own_folder = str(Path(__file__).parent)
    *_, crashed_thread = output.rpartition("Current thread")
    for frame in _FRAME.finditer(crashed_thread):
        if "/torch/" not in frame["file"] and not frame["file"].startswith(own_folder):
            return f" at {frame['file']}:{frame['line']} in {frame['name']}"
    return ""
