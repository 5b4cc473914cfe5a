"""A child process that runs updates of a recipe and reports its stages, so that a crash ends only the child.

The recipe imports there what it can import here: the folders of `sys.path` are part of the request.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from shoestring.reading import parse_json
from shoestring.units import seconds_text


def run_child(module: str, request: Mapping[str, Any], seconds: float) -> tuple[tuple[dict[str, Any], ...], str]:
    """Run a module with the request on its standard input, for at most `seconds`.

    Returns the stages that it reported, and how the process failed; empty if it exited normally.
    """
    command = [sys.executable, "-P", "-m", module]
    text = json.dumps({**request, "path": sys.path})
    try:
        process = subprocess.run(command, input=text, capture_output=True, text=True, timeout=seconds, check=False)
        output, exit_reason = process.stdout, _exit_reason(process.returncode, process.stderr)
    except subprocess.TimeoutExpired as timeout:
        partial_output = timeout.stdout or ""
        output = partial_output.decode() if isinstance(partial_output, bytes) else partial_output
        exit_reason = f"the process did not finish within {seconds_text(seconds)}"
    lines = [line for line in output.splitlines() if line.endswith("}")]
    return tuple(map(json.loads, lines)), exit_reason


def read_request() -> dict[str, Any]:
    """Return the request to this process, a child, after adopting its parent's folders of modules."""
    request: dict[str, Any] = parse_json(sys.stdin.buffer.read())
    sys.path[:] = request.pop("path")
    return request


def _exit_reason(status: int, stderr: str) -> str:
    """Return how a process with this exit status failed; empty for status 0."""
    if status == 0:
        return ""
    if status == -9:
        return "the system killed the process, as it does when RAM runs out"
    last_line = (stderr.strip().splitlines() or ["no output"])[-1][:300]
    return f"the process exited with status {status}: {last_line}"
