"""List which microbatches would be predicted to fit without the margins of plans, where a decision was two steps off.

    python -m benchmarks.lab.memory.margins [WORD ...]

The margins are for what a simulated GPU does not have: a context above the typical one, and workspaces of kernels
(2% of the allocated memory). WORDs select the rows of `lab-decisions.json` by their names.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.lab.memory.configurations import Configuration, of_decisions
from benchmarks.lab.memory.deciding import EFFECTIVE_BATCH
from benchmarks.lab.memory.decisions import RESULTS
from benchmarks.lab.memory.estimating import open_tracer
from benchmarks.lab.memory.measuring import without_initial_values

from shoestring.base.settings import Settings
from shoestring.hardware.targets import find as find_target
from shoestring.planning.candidates import Candidates


def fitting(item: Configuration, row: Mapping[str, Any]) -> Iterator[tuple[int, bool]]:
    """Yield each microbatch of a row from the largest that its plan allows, and whether it fits without margins."""
    target = find_target(item.on)
    _, typical, _ = target.device.context_bytes
    exact = replace(target, device=replace(target.device, context_bytes=(typical, typical, typical)))
    with tempfile.TemporaryDirectory() as folder, without_initial_values():
        loaded = item.load(Path(folder), EFFECTIVE_BATCH)
        with open_tracer(loaded) as tracer, patch("shoestring.planning.estimate.memory._UNKNOWN_WORKSPACES_SHARE", 0):
            for size in [row["largest"], *row["next"]]:
                settings = Settings(**{**row["fixed"], "micro_batch": size})
                yield size, Candidates(tracer, loaded, exact).evaluate(settings).fits


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    items = {item.id: item for item in of_decisions()}
    for row in json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]:
        is_selected = any(word in row["id"] for word in words) if words else "steps off" in row["outcome"]
        for size, fits in fitting(items[row["id"]], row) if is_selected else ():
            measured = row["runs"].get(str(size))
            outcome = "not run" if measured is None else "fits" if measured["fits"] else "does not fit"
            prediction = "fits" if fits else "does not fit"
            print(f"{row['id']}, {size} samples: {prediction} without margins; on the simulated GPU: {outcome}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
