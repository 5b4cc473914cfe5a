"""The simulated GPU that the tests of the laboratory run on, in this process and in those that they start."""

import ctypes
import gc
import os
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.planning.simulator.conftest import run_simulated, simulator_libraries  # noqa: F401  (fixtures)

_FOLDER = "SHOESTRING_SIMULATOR_FOLDER"

if os.environ.get(_FOLDER) and (worker := os.environ.get("PYTEST_XDIST_WORKER")):
    # Processes with the same folder share the GPU's memory. The variable is read at the first use of a device.
    os.environ[_FOLDER] = str(Path(os.environ[_FOLDER], worker))
    Path(os.environ[_FOLDER]).mkdir(exist_ok=True)


def pytest_configure():
    if not os.environ.get(_FOLDER):
        raise pytest.UsageError("tests/lab needs a simulated GPU\nhint: make lab ONLY=tests/lab/...")


@pytest.fixture(autouse=True)
def empty_device():
    """Every test begins without cached blocks, so that its peaks and its segments are its own.

    cuBLAS keeps a workspace for each stream. One that a test allocated in a larger block would keep that block from
    being released, and the next tests would find space in it instead of requesting segments.
    """
    import torch

    torch._C._cuda_clearCublasWorkspaces()
    if torch.cuda.memory_allocated():  # what a test before has left in reference cycles
        gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


@pytest.fixture
def failing_segments():
    """A context in which `count` allocations of segments fail, beginning with number `first` from here on."""
    import torch

    runtime = ctypes.CDLL(f"libcudart.so.{str(torch.version.cuda).split('.')[0]}")
    fail_at = runtime.simulator_fail_at
    fail_at.argtypes, fail_at.restype = [ctypes.c_uint64, ctypes.c_uint64], ctypes.c_uint64

    class Segments:
        requested = 0
        """How many were asked for in the context; known at its end."""

    @contextmanager
    def failing(first, count=1):
        segments = Segments()
        fail_at(first, count)
        try:
            yield segments
        finally:
            segments.requested = fail_at(0, 0)

    return failing
