"""Processes on a simulated GPU. They need PyTorch's CUDA build, which `make versions STACK=kaggle` has."""

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from shoestring.hardware.targets import find
from shoestring.planning.simulator.build import libraries
from shoestring.planning.simulator.environment import simulated
from shoestring.planning.simulator.torch_builds import read_build


@dataclass
class Simulated:
    """What a simulated process has printed and recorded."""

    status: int
    stdout: str
    stderr: str
    records: Path

    @property
    def lines(self):
        return self.stdout.splitlines()


@pytest.fixture(scope="session")
def simulator_libraries():
    if not torch.version.cuda:
        pytest.skip("needs PyTorch's build with CUDA, which the stack kaggle has")
    return libraries(read_build(Path(torch.__file__).parent))


@pytest.fixture
def run_simulated(simulator_libraries, tmp_path):
    """A function that runs Python code, or the arguments of an interpreter, on the simulated GPUs of a target."""

    def run(
        code, *arguments, on="kaggle-t4", values="all", updates=None, timeout=240, status=0, fail_at=None, **variables
    ):
        records = tmp_path / f"records{len(list(tmp_path.glob('records*')))}"
        records.mkdir()
        environment = simulated(
            {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **variables},
            simulator_libraries,
            find(on),
            records,
            values=values,
            updates=updates,
        )
        if fail_at is not None:
            environment["SHOESTRING_SIMULATOR_FAIL_AT"] = str(fail_at)
        command = [sys.executable, *(["-c", textwrap.dedent(code)] if isinstance(code, str) else code), *arguments]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, cwd=tmp_path)
        if status is not None:
            assert result.returncode == status, result.stdout[-3000:] + result.stderr[-6000:]
        return Simulated(result.returncode, result.stdout, result.stderr, records)

    return run
