"""The variables of a simulated process."""

from pathlib import Path

import pytest

from shoestring.base.errors import UsageError
from shoestring.hardware.targets import find
from shoestring.planning.simulator.build import SimulatorLibraries
from shoestring.planning.simulator.environment import simulated

LIBRARIES = SimulatorLibraries(
    folder=Path("/cache"), preloaded=(Path("/cache/libcudart.so.12"), Path("/cache/libnccl.so.2"))
)


def test_target_is_told_by_variables():
    variables = simulated({}, LIBRARIES, find("kaggle-t4x2"), Path("/records"), values="all", updates=3)
    told = {name.removeprefix("SHOESTRING_SIMULATOR_"): value for name, value in variables.items()}
    assert (told["GPUS"], told["NAME"], told["CAPABILITY"], told["MULTIPROCESSORS"]) == ("2", "Tesla T4", "7.5", "40")
    assert int(told["MEMORY"]) == 14_912 * 2**20 and told["VALUES"] == "all" and told["UPDATES"] == "3"
    assert variables["LD_PRELOAD"] == "/cache/libcudart.so.12:/cache/libnccl.so.2"


def test_other_preloaded_libraries_and_folders_are_kept_and_older_variables_are_not():
    before = {"LD_PRELOAD": "libjemalloc.so", "LD_LIBRARY_PATH": "/lib", "SHOESTRING_SIMULATOR_UPDATES": "9", "A": "1"}
    variables = simulated(before, LIBRARIES, find("l4"), Path("/records"))
    assert variables["LD_PRELOAD"].endswith(":libjemalloc.so") and variables["LD_LIBRARY_PATH"] == "/cache:/lib"
    assert "SHOESTRING_SIMULATOR_UPDATES" not in variables and variables["A"] == "1"
    assert variables["SHOESTRING_SIMULATOR_NAME"] == "NVIDIA L4"


def test_target_without_a_gpu_is_refused():
    with pytest.raises(UsageError, match="has no GPU to simulate"):
        simulated({}, LIBRARIES, find("cpu"), Path("/records"))
