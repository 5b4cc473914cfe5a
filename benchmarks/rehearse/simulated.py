"""Run a command of Python on simulated GPUs, for example the benchmarks that need a GPU.

    python -m benchmarks.rehearse.simulated [--stack kaggle] [--on TARGET] [--values all] -- -m benchmarks.gpu.kills

What follows `--` are arguments of a Python interpreter. Processes that the command starts are simulated as well. The
exit status is the command's.

A result on a simulated GPU shows what the code does and what PyTorch's allocator does. It says nothing about a GPU's
time or rounding.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import get_args

from shoestring.base.errors import ShoestringError
from shoestring.hardware import targets
from shoestring.planning.simulator import prepare
from shoestring.planning.simulator.build import libraries
from shoestring.planning.simulator.environment import Values, simulated

SOURCES = Path(__file__).parents[2] / "src"


def run(command: Sequence[str], *, on: str, stack: str | None = None, values: Values = "all") -> int:
    """Run an interpreter with the arguments `command` on the simulated GPUs of a target, and return its status.

    Raises UsageError if nothing is prepared, or RunError if the libraries cannot be compiled.
    """
    target = targets.find(on)
    interpreter, build = prepare.find(stack)
    compiled = libraries(build, _show_progress)
    with tempfile.TemporaryDirectory(prefix="simulated-") as folder:
        python = prepare.make_environment(Path(folder, "environment"), interpreter, build)
        records = Path(folder, "records")
        records.mkdir()
        variables = simulated(os.environ, compiled, target, records, values=values)
        if not _has_shoestring(python):
            path = [str(SOURCES), str(_metadata(Path(folder, "metadata"))), variables.get("PYTHONPATH", "")]
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        status = subprocess.run([str(python), *command], env=variables, check=False).returncode
    return status if status >= 0 else 128 - status  # as a shell does for a process that a signal ended


def _has_shoestring(python: Path) -> bool:
    """Return whether an environment has an installed Shoestring; not whether the current folder has one."""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('shoestring') is None)"
    return subprocess.run([str(python), "-P", "-c", code], check=False).returncode == 0


def _metadata(folder: Path) -> Path:
    """Make a folder with the metadata of the Shoestring that runs here: recipes are found by it."""
    folder.mkdir()
    installed = distribution("shoestring")
    name = f"shoestring-{installed.version}.dist-info"
    (folder / name).symlink_to(Path(str(installed.locate_file(name))))
    return folder


def _show_progress(part: str, done: int, total: int) -> None:
    print(f"compiling {part}: {done} of {total}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--stack", help="the versions of a platform's image, such as kaggle; default: those of here")
    parser.add_argument("--on", default="kaggle-t4", help="the target whose GPUs are simulated; default: %(default)s")
    parser.add_argument("--values", choices=get_args(Values), default="all", help="default: %(default)s")
    parser.add_argument("command", nargs="+", metavar="ARGUMENT", help="after --: a script or -m MODULE, and arguments")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the command ends as well
    try:
        return run(options.command, on=options.on, stack=options.stack, values=options.values)
    except ShoestringError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.status


if __name__ == "__main__":
    sys.exit(main())
