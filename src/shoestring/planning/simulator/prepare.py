"""The environment of a rehearsal: PyTorch's default wheel, which needs no GPU here, and a person's own packages.

A rehearsal runs the build with CUDA. An environment that has it is used as it is. For one with a CPU build,
`rehearse --prepare` installs the default wheel of the same version once, without the nvidia-* packages that it asks
for (1.2 GB instead of 4.6): libraries of ours stand in their place. Each rehearsal then makes a small environment in
which that wheel comes first and the person's packages follow.
"""

import fcntl
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from shoestring.base.cache import cache_folder
from shoestring.base.errors import RunError, UsageError
from shoestring.base.system_errors import explaining
from shoestring.base.units import KIB
from shoestring.planning.simulator import stacks
from shoestring.planning.simulator.pip import run_pip
from shoestring.planning.simulator.torch_builds import (
    Interpreter,
    TorchBuild,
    look,
    read_build,
    require_simulated,
    require_version,
)

Say = Callable[[str], object]
"""Called with what is done now, for a person who waits."""

COMMAND = "shoestring rehearse --prepare"
_SHEBANG_BYTES = 120
_COMMAND_BYTES = 64 * KIB
"""The largest command that is copied: those that pip writes have some hundred bytes."""


def find(stack: str | None = None) -> tuple[Interpreter, TorchBuild]:
    """Return the interpreter to rehearse with and its build of PyTorch with CUDA.

    Without a stack that is the interpreter that runs Shoestring, with its own build or with the one that was prepared
    for it.

    Raises UsageError if there is none, naming the command that prepares it.
    """
    if stack:
        environment = stacks.environment_of(stack)
        if environment is None:
            raise UsageError(
                f"the stack {stack} has not been prepared on this machine", hint=f"{COMMAND} --stack {stack}"
            )
        interpreter = look(environment / "bin" / "python")
    else:
        interpreter = look(Path(sys.executable))
    require_simulated(interpreter)
    own = interpreter.torch
    if own is None:
        raise UsageError("PyTorch is not installed in this environment", hint="pip install torch")
    require_version(own)
    if own.cuda:
        return interpreter, own
    prepared = read_build(_wheel_folder(interpreter, own) / "torch")
    if prepared is None or not prepared.cuda:
        raise UsageError(
            f"a rehearsal needs PyTorch's build with CUDA, and this environment has {own.version}",
            hint=f"{COMMAND} installs the default wheel of {own.release} beside it, once (1.2 GB; no GPU is needed)",
        )
    return interpreter, prepared


def prepare(stack: str | None = None, say: Say = lambda _: None) -> TorchBuild:
    """Install what a rehearsal in this environment, or with a stack, needs, and return its build of PyTorch.

    What is there already is not installed again.

    Raises UsageError if this environment cannot be rehearsed in, RunError if an installation fails.
    """
    if stack:
        stacks.install(stack, say)
        return find(stack)[1]
    interpreter = look(Path(sys.executable))
    require_simulated(interpreter)
    if interpreter.torch is None:
        raise UsageError("PyTorch is not installed in this environment", hint="pip install torch")
    require_version(interpreter.torch)
    if not interpreter.torch.cuda:
        _install_wheel(interpreter, interpreter.torch, say)
    return find()[1]


def _wheel_folder(interpreter: Interpreter, build: TorchBuild) -> Path:
    return cache_folder("simulator") / f"torch-{build.release}-py{interpreter.python}"


def _install_wheel(interpreter: Interpreter, build: TorchBuild, say: Say) -> None:
    """Install the default wheel of a build's version into the cache."""
    folder = _wheel_folder(interpreter, build)
    with explaining(f"the wheel of PyTorch could not be written to {folder.parent}"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            installed = read_build(folder / "torch")
            if installed and installed.cuda:
                return
            say(f"installing PyTorch {build.release} with CUDA into {folder}, about 1.2 GB")
            with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as name:
                unfinished = Path(name, "site")
                # `===` compares the text of a version: a CPU build, such as 2.13.0+cpu, is another one.
                run_pip(
                    interpreter.executable,
                    ["install", "--no-deps", "--target", str(unfinished), f"torch==={build.release}"],
                )
                wheel = read_build(unfinished / "torch")
                if wheel is None or not wheel.cuda:
                    raise RunError(
                        f"the package index serves PyTorch {build.release} as a build without CUDA",
                        hint="rehearse with a version whose default wheel on PyPI has CUDA, or take the index of "
                        "download.pytorch.org/whl/cpu out of pip's configuration",
                    )
                if triton := wheel.required_version("triton"):
                    run_pip(
                        interpreter.executable,
                        ["install", "--no-deps", "--target", str(unfinished), f"triton=={triton}"],
                    )
                shutil.rmtree(folder, ignore_errors=True)
                unfinished.rename(folder)


def make_environment(folder: Path, interpreter: Interpreter, build: TorchBuild) -> Path:
    """Return the interpreter to start a script with, in which `build` is the PyTorch that is imported.

    If that is not the environment's own, a new environment in `folder` has it first and the environment's packages
    after it. Raises RunError if it cannot be made.
    """
    if interpreter.torch == build:
        return interpreter.executable
    result = subprocess.run(
        # Isolated: a file venv.py or typing.py in the current folder is none of Python's.
        [str(interpreter.executable), "-I", "-m", "venv", "--without-pip", str(folder)],
        capture_output=True,
        text=True,
        errors="replace",
    )
    if result.returncode:
        raise RunError(
            f"an environment for the rehearsal could not be made: {(result.stderr or result.stdout).strip()[:300]}",
            hint="apt-get install python3-venv",
        )
    site = folder / "lib" / f"python{interpreter.python}" / "site-packages"
    # Folders of packages may have .pth files of their own, such as those of editable installations.
    lines = [str(build.folder.parent), *(f"import site; site.addsitedir({str(path)!r})" for path in interpreter.sites)]
    (site / "rehearsal.pth").write_text("\n".join(lines) + "\n")
    _copy_commands(interpreter.executable.parent, folder / "bin")
    return folder / "bin" / "python"


def _first_lines(python: Path) -> bytes:
    """Return how a program in Python begins that `python` runs, as pip writes it.

    The system takes neither a space nor more than some hundred characters in the path after `#!`, hence a shell, for
    which the second line is a command and the third one is not reached; for Python both are one text.
    """
    path = bytes(python)
    if b" " not in path and len(path) < _SHEBANG_BYTES:
        return b"#!" + path + b"\n"
    return b"#!/bin/sh\n'''exec' \"" + path + b'" "$0" "$@"\n\' \'\'\'\n'


def _copy_commands(source: Path, target: Path) -> None:
    """Copy the commands of an environment, such as torchrun, so that they start the interpreter in `target`."""
    python = target / "python"
    for path in source.iterdir():
        if path.is_file() and not path.is_symlink() and not (target / path.name).exists():
            first, _, remainder = path.read_bytes()[:_COMMAND_BYTES].partition(b"\n")
            if first.startswith(b"#!") and b"python" in first:
                (target / path.name).write_bytes(_first_lines(python) + remainder)
                (target / path.name).chmod(0o755)
