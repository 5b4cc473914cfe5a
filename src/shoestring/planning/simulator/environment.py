"""The environment of a simulated process: which libraries it loads, and what they are told about the target."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from shoestring.base.errors import UsageError
from shoestring.hardware.catalog import Target
from shoestring.hardware.multiprocessors import multiprocessors
from shoestring.hardware.probe import SIMULATOR_PREFIX
from shoestring.planning.simulator.build import SimulatorLibraries
from shoestring.planning.simulator.devices import driver_name

Values = Literal["auto", "all", "none"]
"""Which values are computed: those of small tensors, all, or none."""


def simulated(
    variables: Mapping[str, str],
    libraries: SimulatorLibraries,
    target: Target,
    folder: Path,
    *,
    values: Values = "auto",
    updates: int | None = None,
    operators: bool = True,
) -> dict[str, str]:
    """Return `variables` with those of a process that runs on the simulated GPUs of `target`.

    All processes of a rehearsal write to `folder`, which must exist. With `updates`, the script ends after so many
    optimizer steps. `operators` records what runs, for the time.

    Raises UsageError if the target has no GPU.
    """
    device = target.device
    if device.kind != "cuda" or device.compute_capability is None:
        raise UsageError(f"{target.name} has no GPU to simulate", hint="--on kaggle-t4, or another GPU")
    facts = {
        "FOLDER": str(folder),
        "LIBRARIES": str(libraries.folder),
        "INSIDE": str(Path(__file__).parent / "inside"),
        "GPUS": str(target.gpus),
        "NAME": driver_name(device),
        "CAPABILITY": ".".join(map(str, device.compute_capability)),
        "MULTIPROCESSORS": str(multiprocessors(device)),
        "MEMORY": str(device.memory_bytes),
        "CONTEXT": str(device.context_bytes[1]),
        "VALUES": values,
        "OPERATORS": str(int(operators)),
        **({"UPDATES": str(updates)} if updates else {}),
    }
    preload = [*map(str, libraries.preloaded), *filter(None, [variables.get("LD_PRELOAD", "")])]
    path = [str(libraries.folder), *filter(None, [variables.get("LD_LIBRARY_PATH", "")])]
    return {
        **{name: value for name, value in variables.items() if not name.startswith(SIMULATOR_PREFIX)},
        **{f"{SIMULATOR_PREFIX}{name}": value for name, value in facts.items()},
        "LD_PRELOAD": ":".join(preload),
        # What is opened by name, such as NVML by nvidia-ml-py.
        "LD_LIBRARY_PATH": ":".join(path),
    }
