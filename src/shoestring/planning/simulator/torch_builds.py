"""The build of PyTorch that an interpreter would import, read from its files: torch itself is not imported."""

import ast
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from shoestring.base.errors import UsageError
from shoestring.base.packages.requirements import parse_version

OLDEST = "2.10"
"""The oldest version of PyTorch that the libraries in `native` were tried with, and that Shoestring requires."""
PYTHONS = ("3.11", "3.12", "3.13")
"""The versions of Python that a rehearsal was tried with."""

_LOOK = """
import importlib.util, json, platform, site, sys
spec = importlib.util.find_spec("torch")
user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
print(json.dumps({
    "python": "%d.%d" % sys.version_info[:2],
    "torch": spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else None,
    "sites": [*user, *site.getsitepackages()],
    "system": sys.platform,
    "machine": platform.machine(),
    "libc": platform.libc_ver()[0],
}))
"""


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A Python environment, and where it would import PyTorch from."""

    executable: Path
    """The file that starts it."""
    python: str
    """Its version, such as 3.12."""
    sites: tuple[Path, ...]
    """Its folders of installed packages, the first one first."""
    system: str
    """`sys.platform`."""
    machine: str
    """The architecture of its processor, such as x86_64."""
    libc: str
    """The name of its C library; empty if it is not glibc."""
    torch: "TorchBuild | None"
    """Its PyTorch; None if it has none."""


@dataclass(frozen=True, kw_only=True)
class TorchBuild:
    """A build of PyTorch on this machine."""

    folder: Path
    """The folder of the package `torch`."""
    version: str
    """Its version with the build's tag, such as `2.13.0+cu130`."""
    cuda: str | None
    """The version of CUDA it was built for, such as `13.0`; None for a CPU build."""

    @property
    def release(self) -> str:
        """The version without the build's tag."""
        return self.version.partition("+")[0]

    def required_version(self, package: str) -> str | None:
        """Return the version of a package that this build asks for in its metadata, as cuDNN's; None if it does not.

        `package` is the beginning of the name, such as `nvidia-cudnn`.
        """
        pattern = re.compile(rf"^Requires-Dist: {re.escape(package)}[\w-]*==([\d.]+)", re.MULTILINE)
        for path in sorted(self.folder.parent.glob(f"torch-{self.release}*.dist-info/METADATA")):
            if match := pattern.search(path.read_text(encoding="utf-8", errors="replace")):
                return match[1]
        return None

    @property
    def cuda_number(self) -> int:
        """CUDA's version as its headers have it, such as 12080. Raises ValueError for a CPU build."""
        if self.cuda is None:
            raise ValueError(f"PyTorch {self.version} was built without CUDA")
        major, minor = self.cuda.split(".")[:2]
        return int(major) * 1000 + int(minor) * 10


def look(executable: Path) -> Interpreter:
    """Return what an interpreter is, and its PyTorch.

    Raises UsageError if it cannot be started.
    """
    command = [str(executable), "-P", "-c", _LOOK]
    try:
        # Neither a file named torch.py in the current folder is PyTorch, nor one that a relative PYTHONPATH leads to.
        answer = subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=60, cwd=executable.parent
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"{executable} cannot be started: {error}") from error
    facts = json.loads(answer)
    folder = facts.pop("torch")
    return Interpreter(
        executable=executable,
        torch=read_build(Path(folder)) if folder else None,
        **{**facts, "sites": tuple(map(Path, facts["sites"]))},
    )


def read_build(folder: Path) -> TorchBuild | None:
    """Return the build in a folder of the package `torch`; None if its version cannot be read."""
    try:
        tree = ast.parse((folder / "version.py").read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    values = {}
    for statement in tree.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        value = getattr(statement, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            values[target.id] = value.value
    version, cuda = values.get("__version__"), values.get("cuda")
    if not isinstance(version, str):
        return None
    return TorchBuild(folder=folder, version=version, cuda=cuda if isinstance(cuda, str) else None)


def require_simulated(interpreter: Interpreter) -> None:
    """Raise UsageError if nothing in this environment can be rehearsed, whatever its PyTorch."""
    if interpreter.system != "linux":
        raise UsageError(
            f"a rehearsal needs Linux, since PyTorch has no CUDA build for {interpreter.system}",
            hint="rehearse in a container with Linux, or `shoestring plan`, which needs no CUDA build",
        )
    if interpreter.machine != "x86_64" or interpreter.libc != "glibc":
        platform_text = (
            interpreter.machine if interpreter.machine != "x86_64" else "a C library that is not glibc (musl?)"
        )
        raise UsageError(
            f"a rehearsal needs Linux on x86_64 with glibc, as PyTorch's default wheels do; this is {platform_text}",
            hint="rehearse in a container such as python:3.12-slim",
        )
    if interpreter.python not in PYTHONS:
        raise UsageError(
            f"{interpreter.executable} is Python {interpreter.python}; rehearsals run with {', '.join(PYTHONS)}",
            hint="make an environment with one of these and install Shoestring and your packages there",
        )


def require_version(build: TorchBuild) -> None:
    """Raise UsageError if a build of PyTorch is older than those that the libraries in `native` were tried with."""
    if parse_version(build.release) < parse_version(OLDEST):
        raise UsageError(
            f"PyTorch {build.version} is too old for a rehearsal, which needs {OLDEST} or newer",
            hint=f"pip install 'torch>={OLDEST}'",
        )
