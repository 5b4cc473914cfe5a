"""Compare the allocations of a configuration's updates with those of its estimate, to find why their peaks differ.

    python -m benchmarks.lab.memory.causes ID [ID ...]

Both sides are those of `benchmarks.rehearse.allocations`, with four updates of two microbatches, on a T4.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lab.memory.configurations import Configuration, configurations
from benchmarks.rehearse import allocations
from benchmarks.rehearse.allocations import RECORDERS, Record, compare

from shoestring.hardware.targets import find as find_target
from shoestring.planning.simulator import environment, prepare
from shoestring.planning.simulator.build import libraries
from shoestring.recipe.options import LoadedRecipe


@dataclass(frozen=True, kw_only=True)
class Case(allocations.Case):
    """A configuration as a case of the comparison."""

    configuration: Configuration

    @property
    def name(self) -> str:
        return self.configuration.id

    def load(self, folder: Path) -> LoadedRecipe:
        return self.configuration.load(folder)


def case_of(name: str) -> Case:
    configuration = next(item for item in configurations() if item.id == name)
    return Case(recipe=configuration.model, settings=configuration.settings, configuration=configuration)


def record(side: str, name: str) -> Record:
    """Make the record of one side in a process of its own. Raises CalledProcessError if it fails."""
    interpreter, build = prepare.find()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "record.json")
        variables = {**os.environ, "PYTHONPATH": f"{allocations.ROOT / 'src'}:{allocations.ROOT}"}
        target = find_target(allocations.TARGET)
        variables = environment.simulated(variables, libraries(build), target, Path(folder), operators=False)
        if side == "estimate":
            variables["CUDA_VISIBLE_DEVICES"] = ""
        command = [str(interpreter.executable), "-m", "benchmarks.lab.memory.causes", "--side", side, "--out", str(out)]
        subprocess.run([*command, name], env=variables, cwd=allocations.ROOT, check=True)
        return Record.from_json(json.loads(out.read_text()))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="ID")
    parser.add_argument("--side", choices=RECORDERS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    for name in options.names:
        if options.side:
            options.out.write_text(json.dumps(RECORDERS[options.side](case_of(name)).json()))
            return 0
        row = compare(case_of(name), *(record(side, name) for side in ("estimate", "simulated")))
        print(allocations.describe(row), flush=True)
        for group in row["differences"]:
            if group["cause"] == "unexplained" or group.get("adds_to_allocated"):
                print(f"  {group['kind']}, {group['cause']}:")
                for example in group["examples"][:6]:
                    print(f"    {json.dumps(example)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
