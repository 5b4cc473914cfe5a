"""Install packages into an environment or a folder, with its own pip or with uv."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from shoestring.base.errors import RunError


def run_pip(python: Path, arguments: Sequence[str]) -> None:
    """Run pip of an environment, or uv for one without pip. Raises RunError with its last lines if it fails.

    Neither takes a module from the current folder.
    """
    has_pip = subprocess.run([str(python), "-P", "-m", "pip", "--version"], capture_output=True).returncode == 0
    uv = shutil.which("uv")
    if not has_pip and uv is None:
        raise RunError(f"{python} has no pip, which installs what a rehearsal needs", hint=f"{python} -m ensurepip")
    if has_pip:
        command = [
            str(python),
            "-P",
            "-m",
            "pip",
            "--disable-pip-version-check",
            arguments[0],
            "--quiet",
            *arguments[1:],
        ]
    else:
        command = [str(uv), "pip", arguments[0], "--python", str(python), "--quiet", *arguments[1:]]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if "warning" not in line.lower()]
        raise RunError(
            f"pip could not install {arguments[-1]}",
            problems=[line.strip()[:300] for line in lines[-3:]],
            hint="the network and the disk of this machine: pip needs PyPI and about 3 GB",
        )
