"""A process that is observed as one on a simulated GPU is, with a library in place of the simulator's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import shoestring.planning.simulator.inside

INSIDE = Path(shoestring.planning.simulator.inside.__file__).parent

LIBRARY = """
#include <stdio.h>
#include <stdlib.h>
static void told(const char* name, long value) {
  FILE* file = fopen(getenv("TOLD"), "a");
  fprintf(file, "%s %ld\\n", name, value);
  fclose(file);
}
void simulator_set_phase(int phase) { told("phase", phase); }
void simulator_set_update(long update) { told("update", update); }
void simulator_set_step(int step) { told("step", step); }
"""

# As native/torch/python.cpp loads the package; PyTorch calls the queued functions when it initializes CUDA.
BEGIN = """
import importlib.util, os, sys
import torch
def load():
    folder = os.environ["SHOESTRING_SIMULATOR_INSIDE"]
    path = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location("_shoestring_inside", path, submodule_search_locations=[folder])
    module = sys.modules["_shoestring_inside"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.start()
load()
def use_device():
    torch.cuda._queued_calls[-1][0]()
"""


class Observed:
    """What the processes of a script wrote."""

    def __init__(self, folder: Path, result: subprocess.CompletedProcess[str], told: list[str]) -> None:
        self.result = result
        self.told = told
        self.processes = [
            [json.loads(line) for line in path.read_text().splitlines()]
            for path in sorted(folder.glob("events.*.jsonl"))
        ]
        assert not [one for one in self.all_events() if one["kind"] == "observer_error"]

    def all_events(self) -> list[dict[str, Any]]:
        return [event for events in self.processes for event in events]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The events of the only process that wrote some."""
        (events,) = self.processes
        return [event for event in events if event["kind"] == kind]

    def phases(self) -> list[tuple[str, int]]:
        return [(event["phase"], event["update"]) for event in self.events("phase")]


def observe(folder: Path, script: str, begin: str = BEGIN + "use_device()\n", **variables: str) -> Observed:
    """Run a script in a folder of its own."""
    events, libraries = folder / "events", folder / "libraries"
    for one in (events, libraries):
        one.mkdir()
    source = libraries / "library.c"
    source.write_text(LIBRARY)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", libraries / "libshoestring_torch.so", source], check=True)
    (folder / "begin.py").write_text(begin)
    path = folder / "script.py"
    path.write_text("import begin\nfrom begin import *\n" + textwrap.dedent(script))
    told = folder / "told"
    told.touch()
    environment = {
        **os.environ,
        "SHOESTRING_SIMULATOR_FOLDER": str(events),
        "SHOESTRING_SIMULATOR_INSIDE": str(INSIDE),
        "SHOESTRING_SIMULATOR_LIBRARIES": str(libraries),
        "TOLD": str(told),
        "OMP_NUM_THREADS": "1",
        **variables,
    }
    result = subprocess.run(
        [sys.executable, path], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    return Observed(events, result, told.read_text().splitlines())
