"""`shoestring rehearse`: run a script on simulated GPUs and say what became of it.

The person's own file runs unmodified, in a process of its own with PyTorch's own allocator; nothing is executed that
the person did not name. What its processes observe goes to a folder that is removed afterwards.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from shoestring.base.errors import UsageError
from shoestring.base.system_errors import explaining
from shoestring.planning.simulator import environment, nvidia_smi, prepare
from shoestring.planning.simulator.build import SimulatorLibraries, libraries
from shoestring.planning.simulator.statistics import read_statistics
from shoestring.runs.rehearse import command, processes
from shoestring.runs.rehearse.answer import answer
from shoestring.runs.rehearse.events import EventReader
from shoestring.runs.rehearse.rehearsal import Rehearsal
from shoestring.runs.rehearse.request import Progress, RehearsalRequest

_SEPARATOR = re.compile(r"[\s:;]")


def rehearse(
    request: RehearsalRequest,
    *,
    say: Callable[[str], object] = lambda _: None,
    progress: Callable[[Progress], object] = lambda _: None,
) -> Rehearsal:
    """Run what is requested on the simulated target and return what became of it.

    SIGTERM and SIGHUP do what Ctrl-C does: the script ends with the answer so far, and before it began, so does this.

    Raises UsageError if it cannot be rehearsed here, RunError if the simulator cannot be compiled.
    """
    with _interrupting_signals():
        return _rehearse(request, say, progress)


def _rehearse(
    request: RehearsalRequest, say: Callable[[str], object], progress: Callable[[Progress], object]
) -> Rehearsal:
    with explaining("there is no current folder"):
        current = Path.cwd()  # the script may remove it
    interpreter, build = prepare.find(request.stack)
    compiled = libraries(build, lambda name, finished, count: say(f"compiling {name}, {finished} of {count}"))
    with (
        explaining("the rehearsal's folder could not be made"),
        tempfile.TemporaryDirectory(prefix="rehearsal-") as name,
    ):
        folder = Path(name)
        records = folder / "records"
        records.mkdir()
        python = prepare.make_environment(folder / "environment", interpreter, build)
        variables = environment.simulated(
            os.environ,
            _loadable(compiled, folder / "libraries"),
            request.target,
            records,
            values=request.values,
            updates=request.updates,
        )
        if request.script and request.script.suffix == ".ipynb":  # its code runs from another folder
            search = [str(request.script.parent.absolute()), *filter(None, [variables.get("PYTHONPATH", "")])]
            variables["PYTHONPATH"] = os.pathsep.join(search)
        # Commands that the script starts by name: torchrun is that of the same environment, nvidia-smi ours.
        commands = _commands(folder / "commands", python)
        variables["PATH"] = f"{commands}:{python.parent}:{variables.get('PATH', os.defpath)}"
        arguments = command.arguments(request, folder)
        reader = EventReader(records)
        started = time.monotonic()

        def poll() -> None:
            reader.read()
            progress(_progress(request, reader, records, time.monotonic() - started))

        outcome = processes.run(
            [str(python), *arguments],
            variables,
            folder,
            records=records,
            stdout_to_stderr=request.json,
            poll=poll,
        )
        seconds = time.monotonic() - started
        with _outside_of_removed(current):
            return answer(request, interpreter, build, records, reader, outcome, seconds, current)


def _loadable(compiled: SimulatorLibraries, link: Path) -> SimulatorLibraries:
    """Return libraries with paths that LD_PRELOAD can name: a link stands for a folder with a space or a colon."""
    if not _SEPARATOR.search(str(compiled.folder)):
        return compiled
    if _SEPARATOR.search(str(link)):
        raise UsageError(
            f"the folder {link.parent.parent} has a space, a colon or a semicolon in its name, which no list of "
            "libraries can have",
            hint="choose another one for temporary files: TMPDIR=/tmp shoestring rehearse ...",
        )
    link.symlink_to(compiled.folder)
    return SimulatorLibraries(folder=link, preloaded=tuple(link / path.name for path in compiled.preloaded))


def _commands(folder: Path, python: Path) -> Path:
    """Make a folder with the programs of a machine with a GPU that a script may call."""
    folder.mkdir()
    program = folder / "nvidia-smi"
    # Through a shell: the first line of a program cannot name an interpreter whose path is long or has a space.
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(str(python))} -I -S {shlex.quote(nvidia_smi.__file__)} "$@"\n')
    program.chmod(0o755)
    return folder


@contextmanager
def _outside_of_removed(current: Path) -> Iterator[None]:
    """Leave the current folder meanwhile if the script has removed it: there, PyTorch's MKL ends the process."""
    if current.exists():
        yield
        return
    descriptor = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    os.chdir("/")
    try:
        yield
    finally:
        os.fchdir(descriptor)
        os.close(descriptor)


@contextmanager
def _interrupting_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt, unless the caller handles or ignores them."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        numbers = []
    try:
        for number in numbers:
            signal.signal(number, interrupt)
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _progress(request: RehearsalRequest, reader: EventReader, records: Path, seconds: float) -> Progress:
    """Return how far the script is."""
    leading = reader.leading
    reserved = [device.reserved_bytes for process in read_statistics(records) for device in process.devices]
    return Progress(
        seconds=seconds,
        updates=reader.updates,
        total_updates=request.updates or (leading.total_updates if leading else None),
        phase=leading.phase if leading else "loading",
        reserved_bytes=max(reserved, default=0),
        capacity_bytes=request.target.device.memory_bytes,
    )
