"""Wheels of requirements that Kaggle's image lacks, so that a session without internet has them.

They are downloaded with pip, once, to `$XDG_CACHE_HOME/shoestring/wheels` (by default below `~/.cache`), which belongs
to the user, and not to the run's directory, which may come from someone else. What cannot be downloaded is a note: a
session with internet installs it itself.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from shoestring.reading import read_bytes
from shoestring.units import MIB

LACKED = {
    # Pinned below what Shoestring needs: matplotlib<3.8, scikit-learn==1.2.2 (kaggle_requirements.txt).
    "matplotlib": "pinned to an older version",
    "scikit-learn": "pinned to an older version",
    # Neither there nor, as far as is known, in the image of Colab, on which Kaggle's is built.
    "nvidia-ml-py": "not listed",
    "nupunkt": "not listed",
    "imagecodecs": "not listed",
    "trl": "not listed",
    "gguf": "not listed",
}
"""Requirements of Shoestring and its extras that Kaggle's image lacks, and how that is known: from the file
kaggle_requirements.txt of https://github.com/Kaggle/docker-python, read in November 2026."""

PYTHONS = ("3.11", "3.12")
"""The versions of Python that Kaggle's images have had since 2025."""
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
_SECONDS = 180.0
_MAX_BYTES = 200 * MIB
_WHEEL = re.compile(r"[\w.+-]+\.whl")


def lacked_requirements(extra: str) -> list[str]:
    """Return the requirements of Shoestring and of its `extra` that Kaggle's image lacks, as texts for pip."""
    requirements = []
    for text in importlib.metadata.requires("shoestring") or []:
        requirement, _, marker = text.partition(";")
        name = re.split(r"[^\w.-]", requirement.strip())[0].lower()
        is_required = not marker or f"extra == '{extra}'" in marker.replace('"', "'")
        if name in LACKED and is_required:
            requirements.append(requirement.strip().replace(" ", ""))
    return sorted(set(requirements))


def cached_wheels(extra: str) -> dict[str, bytes]:
    """Return the wheels for an extra that have been downloaded before, by file name. Nothing is contacted."""
    wheels: dict[str, bytes] = {}
    for requirement in lacked_requirements(extra):
        for python in PYTHONS:
            folder = _folder(requirement, python)
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                if _WHEEL.fullmatch(path.name):
                    wheels[path.name] = read_bytes(path, follow=False, max_bytes=_MAX_BYTES)
    return wheels


def download_wheels(extra: str, on_note: Callable[[str], object]) -> None:
    """Download the wheels for an extra that are not in the cache. A failure is a note, and nothing is cached then."""
    for requirement in lacked_requirements(extra):
        for python in PYTHONS:
            folder = _folder(requirement, python)
            if folder.is_dir():
                continue
            try:
                _download(requirement, python, folder)
            except (OSError, subprocess.SubprocessError) as error:
                output = getattr(error, "stderr", None) or str(error)
                reason = str(output).strip().splitlines()[-1:] or ["no reason"]
                on_note(
                    f"no wheel of {requirement} for Python {python}: {reason[0][:200]}; sessions need internet for it"
                )
                break


def _download(requirement: str, python: str, folder: Path) -> None:
    """Raises OSError, and SubprocessError with pip's words."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".download-") as name:
        platforms = [argument for platform in _PLATFORMS for argument in ("--platform", platform)]
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--quiet"),
                *("--no-deps", "--only-binary=:all:", "--python-version", python, *platforms),
                *("--dest", name, requirement),
            ],
            check=True,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        complete = Path(name).with_name(f"{folder.name}.{os.getpid()}")
        shutil.copytree(name, complete)
        try:
            complete.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(complete, ignore_errors=True)


def _folder(requirement: str, python: str) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache"
    name = re.split(r"[^\w.-]", requirement)[0]
    digest = hashlib.sha256(requirement.encode()).hexdigest()[:8]
    return base / "shoestring" / "wheels" / f"{name}-{digest}-py{python}"
