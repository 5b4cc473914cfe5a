"""The library that gives the processes of a session another wall clock."""

import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


def compiled(folder):
    """Compile the library into `folder` and return its path; None if there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = folder / "wall_clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE)], check=True)
    return library


def with_library(environment, library):
    """Return the environment of processes that load the library first; the variable WALL_CLOCK then sets the clock."""
    if library is None:
        return environment
    preloaded = [str(library), *filter(None, [environment.get("LD_PRELOAD", os.environ.get("LD_PRELOAD"))])]
    return {**environment, "LD_PRELOAD": ":".join(preloaded)}
