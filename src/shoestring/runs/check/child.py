"""A child process that runs updates of a recipe and reports its stages, so that a crash ends only the child.

The recipe imports there what it can import here: the folders of `sys.path` are part of the request.
"""

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from shoestring.base.processes import exit_with_parent, kill_with_descendants
from shoestring.base.reading import parse_json
from shoestring.base.units import seconds_text

_TAIL_BYTES = 8192
"""How much of the end of the child's standard error is read for its last line."""


def run_child(
    module: str,
    request: Mapping[str, Any],
    seconds: float,
    *,
    environment: Mapping[str, str] | None = None,
    on_stage: Callable[[dict[str, Any]], object] = lambda _: None,
) -> tuple[tuple[dict[str, Any], ...], str]:
    """Run a module with the request on its standard input, for at most `seconds`.

    `on_stage` is called with each stage as soon as it is reported. The child and the processes that it has started end
    with this call, whatever ends it, and with this process.

    Returns the stages that it reported, and how the process failed; empty if it exited normally.
    """
    text = json.dumps({**request, "path": sys.path, "parent": os.getpid()})
    stages: list[dict[str, Any]] = []
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # a Ctrl-C reaches this process, which ends the child
            env={**os.environ, **(environment or {})},
        )
        assert process.stdin and process.stdout
        try:
            _send(process.stdin, text)
            for line in _lines(process.stdout, time.monotonic() + seconds):
                if line.endswith(b"}\n"):
                    stages.append(json.loads(line))
                    on_stage(stages[-1])
            exit_reason = _exit_reason(process.wait(), errors)
        except TimeoutError:
            exit_reason = f"the process did not finish within {seconds_text(seconds)}"
        finally:
            if process.poll() is None:
                kill_with_descendants(process.pid)
            process.wait()
            process.stdout.close()
    return tuple(stages), exit_reason


def read_request() -> dict[str, Any]:
    """Return the request to this process, a child, after adopting its parent's folders of modules.

    From now on it ends with its parent.
    """
    request: dict[str, Any] = parse_json(sys.stdin.buffer.read())
    exit_with_parent(request.pop("parent"))
    sys.path[:] = request.pop("path")
    return request


def _send(stream: IO[bytes], text: str) -> None:
    try:
        stream.write(text.encode())
        stream.close()
    except BrokenPipeError:  # it has ended; its status and its output say why
        return


def _lines(stream: IO[bytes], end: float) -> Iterator[bytes]:
    """Yield the lines until the stream ends. Raises TimeoutError when it is the time `end` by `time.monotonic()`."""
    incomplete = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, end - time.monotonic())):
                raise TimeoutError
            if not (block := os.read(stream.fileno(), 65536)):
                return
            *lines, incomplete = (incomplete + block).split(b"\n")
            yield from (line + b"\n" for line in lines)


def _exit_reason(status: int, errors: IO[bytes]) -> str:
    """Return how a process with this exit status failed; empty for status 0."""
    if status == 0:
        return ""
    if status == -9:
        return "the system killed the process, as it does when RAM runs out"
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - _TAIL_BYTES))
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return f"the process exited with status {status}: {(lines or ['no output'])[-1][:300]}"
