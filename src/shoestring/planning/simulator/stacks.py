"""Environments with the versions of a platform's image, in which a script is rehearsed as it would run there.

A stack is a list of packages with their versions (`constraints/kaggle.txt`, `colab.txt`), each installed without its
requirements, so no package of CUDA comes along. It lies once for a user in the cache.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from shoestring.base.cache import cache_folder
from shoestring.base.errors import UsageError, nearest
from shoestring.base.system_errors import explaining
from shoestring.planning.simulator.pip import run_pip
from shoestring.planning.simulator.torch_builds import look

STACKS = {"kaggle": "Kaggle's image", "colab": "Colab's image"}
"""The stacks that `--stack` takes, with their titles."""

_FOLDERS = (Path(__file__).parent / "constraints", Path(__file__).parents[4] / "constraints")
"""Where the lists are: in an installed wheel, and in a checkout."""
_COMPLETE = "complete"
_PYTHON = re.compile(r"Python (3\.\d+)")


def environment_of(name: str) -> Path | None:
    """Return the environment of a stack; None if it was not installed on this machine.

    Raises UsageError for an unknown stack.
    """
    folder = _folder(name)
    return folder if (folder / _COMPLETE).exists() else None


def install(name: str, say: Callable[[str], object] = lambda _: None) -> Path:
    """Install a stack into the cache, unless it is there, and return its environment.

    Raises UsageError for an unknown stack or without its version of Python, RunError if pip fails.
    """
    folder = _folder(name)
    with explaining(f"the stack {name} could not be written to {folder.parent}"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / _COMPLETE).exists():
                shutil.rmtree(folder, ignore_errors=True)
                interpreter = _interpreter(name)
                say(f"installing {STACKS[name]} into {folder}, about 3 GB; this takes some minutes")
                subprocess.run([str(interpreter), "-I", "-m", "venv", str(folder)], check=True, capture_output=True)
                python = folder / "bin" / "python"
                run_pip(python, ["install", "--no-deps", "--requirement", str(_list(name))])
                build = look(python).torch
                # The image has it, as PyTorch's default wheel asks for it; the list is for machines without a GPU.
                if triton := build and build.required_version("triton"):
                    run_pip(python, ["install", "--no-deps", f"triton=={triton}"])
                (folder / _COMPLETE).touch()
    return folder


def _list(name: str) -> Path:
    """Return the file that lists the packages of a stack."""
    if name not in STACKS:
        raise UsageError(f"there is no stack {name!r}", hint=nearest(name, STACKS))
    return next(path for folder in _FOLDERS if (path := folder / f"{name}.txt").exists())


def _folder(name: str) -> Path:
    digest = hashlib.sha256(_list(name).read_bytes()).hexdigest()[:12]
    return cache_folder("simulator") / f"stack-{name}-{digest}"


def _interpreter(name: str) -> Path:
    """Return a Python of the version that a stack needs: the first on the PATH, or one of pyenv's."""
    match = _PYTHON.search(_list(name).read_text(encoding="utf-8"))
    version = match[1] if match else "3.12"
    on_path = shutil.which(f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for path in filter(None, [on_path, *map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python")))]):
        check = f"import sys; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
        if subprocess.run([path, "-c", check], capture_output=True).returncode == 0:
            return Path(path)
    raise UsageError(
        f"the stack {name} needs Python {version}, which is not on the PATH",
        hint=f"install Python {version}, with venv",
    )
