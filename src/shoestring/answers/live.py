"""Training within a notebook: a child process trains, and the cell shows the run as `shoestring watch` does.

The child is `shoestring train`, so a crash of the training does not end the notebook's kernel, several GPUs have a
process each, and a session that does not end in time is ended by its supervisor. Interrupting the cell asks the child
to save and stop.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoestring.base.config import option_text
from shoestring.base.errors import RunError, ShoestringError, UsageError
from shoestring.planning.plan import Plan
from shoestring.runs.train.session import LaunchRequest, local_target
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.stored import StoredState
from shoestring.training.session.outcome import Outcome

_EVERY_SECONDS = 2.0
_LINES = 40


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and shell.has_trait("kernel")


def train_in_child(
    recipe: str | object, values: Mapping[str, object], request: LaunchRequest, plan: Plan | None = None
) -> Outcome:
    """Train in a child process, show the run meanwhile, and return the outcome. The arguments are those of `launch`.

    Raises UsageError or RunError with the child's message.
    """
    assert isinstance(recipe, str)
    command = [sys.executable, "-m", "shoestring", *arguments(recipe, values, request, plan)]
    with tempfile.TemporaryFile() as messages:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=messages,
            start_new_session=True,  # an interrupt of the kernel reaches the child once, from here
            env={**os.environ, "COLUMNS": "100"},
        )
        _follow(child, request.run)
        messages.seek(0)
        lines = messages.read().decode(errors="replace").replace("\r", "\n").splitlines()
    if child.returncode:
        raise _error(child.returncode, lines)
    return (RunDirectory(request.run).state() or StoredState()).outcome()


def arguments(recipe: str, values: Mapping[str, object], request: LaunchRequest, plan: Plan | None) -> list[str]:
    """Return the command that trains as `launch` does with the same arguments.

    The settings of a plan for another device are left out: `launch` plans again then, with the plan's options.
    """
    if plan:
        is_of_this_device = plan.target.device.name == local_target(request.on).device.name
        settings = {name: value for name, value in plan.settings.json().items() if value is not None}
        values = {**plan.options, **(settings if is_of_this_device else {}), **values}
    command = ["train", recipe, "--run", str(request.run), "--on", request.on]
    for name, value in values.items():
        command += ["--set", f"{name}={option_text(value)}"]
    for option, text in (
        ("--limit", None if request.limit_seconds is None else f"{request.limit_seconds:.0f}s"),
        ("--disk", None if request.disk_bytes is None else str(request.disk_bytes)),
        ("--backup", request.backup),
        ("--from", request.from_url),
        *(("--log", name) for name in request.log),
    ):
        command += [option, text] if text else []
    if request.probe is not None:
        command.append("--probe" if request.probe else "--no-probe")
    flags = {"--allow-inexact": request.allow_inexact, "--allow-cpu": request.allow_cpu}
    return [*command, *(flag for flag, is_given in flags.items() if is_given)]


def _follow(child: subprocess.Popen[bytes], run: Path) -> None:
    """Show the run until the child has ended. A KeyboardInterrupt asks it to stop, a second one ends it."""
    display: Any = importlib.import_module("IPython.display").display
    handle, interrupts = display(_Message("Training starts …"), display_id=True), 0
    while True:
        try:
            has_ended = child.poll() is not None
            handle.update(_present(run, is_stopping=bool(interrupts) and not has_ended))
            if has_ended:
                return
            with suppress(subprocess.TimeoutExpired):
                child.wait(_EVERY_SECONDS)
        except KeyboardInterrupt:
            interrupts += 1
            with suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL) if interrupts > 2 else child.send_signal(signal.SIGINT)


def _present(run: Path, *, is_stopping: bool) -> Any:
    """Return what the cell shows now: the view of the run, or a sentence while there is none."""
    from shoestring.answers.watch.following import follow

    if is_stopping:
        return _Message("Saving the run, then it is paused …")
    try:
        return next(iter(follow(run)))
    except (UsageError, OSError, StopIteration):
        return _Message("Planning, and loading the data …")


class _Message:
    """A sentence while there is nothing to draw."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return f"<p><i>{self._text}</i></p>"


def _error(status: int, lines: Iterable[str]) -> ShoestringError:
    """Return the child's error: what it printed after the last `error:`."""
    text = [line for line in lines if line.strip()]
    starts = [number for number, line in enumerate(text) if line.startswith("error: ")]
    message = text[starts[-1] :] if starts else text[-_LINES:]
    hints = [number for number, line in enumerate(message) if line.startswith("hint: ")]
    hint = (
        "\n".join(message[hints[0] :]).removeprefix("hint: ") if hints else "the lines above are the end of its output"
    )
    body = "\n".join(message[: hints[0]] if hints else message).removeprefix("error: ")
    kind = UsageError if status == 2 else RunError
    return kind(body or f"training ended with status {status}", hint=hint)
