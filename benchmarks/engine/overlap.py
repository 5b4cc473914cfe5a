"""Compare the exchange of gradients during the last backward with one after it, on two processes and a slow link.

    python -m benchmarks.engine.overlap [--pairs 16] [--json OUT]

Gloo processes stand for GPUs. The processors of one machine are shared by all processes, and the speed of theirs says
little of GPUs that compute by themselves. So the time of computation and that of the link are sleeps: each layer sleeps
for every sample, twice as long in backward as in forward, and after each message its process sleeps for as long as a
link of 1 Gbit/s would need for its bytes. The work of the engine, real products of small batches, optimizer steps and
messages between the processes come on top. So this measures in which order the engine works and what that costs; it
does not measure how a GPU's kernels and its copies slow each other down.

As in parallel.py, all contenders are alive during the whole run, their blocks of updates take turns, and what is
compared are ratios of neighbouring blocks.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.engine.compare import RESULTS
from benchmarks.engine.parallel import SHAPE, interval, measure

LINK = 125_000_000
"""Bytes per second: 1 Gbit/s."""
BATCH = 64
"""Samples of an update, of all processes."""
PAUSE = 0.5e-3
"""The seconds in which a layer computes the forward pass of a sample."""
GOAL = 1.4
"""Two processes are at least so many times as fast as one."""
_ENGINE = {"loop": "shoestring", "sharding": "ddp", "batch": BATCH, "pause": PAUSE}
CONTENDERS: dict[str, dict[str, Any]] = {
    "one process": {**_ENGINE, "ranks": 1},
    "after backward": {**_ENGINE, "ranks": 2, "link": LINK, "exchange": "after backward"},
    "during backward": {**_ENGINE, "ranks": 2, "link": LINK},
}


def rows(seconds: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Return the row of each contender: the median of its updates, and how many times as fast as one process it is."""
    result = []
    for name, own in seconds.items():
        ratios = [alone / value for alone, value in zip(seconds["one process"], own, strict=True)]
        result.append(
            {
                "name": name,
                "update_seconds": median(own),
                "speedup": median(ratios),
                "speedup_interval": interval(ratios),
                "seconds": own,
            }
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the exchange of gradients during backward and after it.")
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--json", type=Path, default=RESULTS / "overlap.json")
    arguments = parser.parse_args()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        seconds = measure(CONTENDERS, arguments.pairs, Path(folder))
    measured = rows(seconds)
    for row in measured:
        low, high = row["speedup_interval"]
        print(
            f"{row['name']:16} {row['update_seconds'] * 1e3:7.1f} ms   {row['speedup']:.2f} ({low:.2f} to {high:.2f}) "
            "times one process"
        )
    gains = [
        after / during for after, during in zip(seconds["after backward"], seconds["during backward"], strict=True)
    ]
    is_reached = measured[-1]["speedup"] >= GOAL
    print(f"during backward: {median(gains):.2f} times as fast as after it")
    print(f"{'reached' if is_reached else 'NOT REACHED'}: at least {GOAL} times one process")
    content = {
        "environment": {
            "python": platform.python_version(),
            "processors": os.cpu_count(),
            "load before": load_before,
            "load after": os.getloadavg()[0],
            "torch": metadata.version("torch"),
        },
        "layers and width": SHAPE,
        "samples of an update": BATCH,
        "computation": f"a sleep of {PAUSE} s for each sample and layer in forward, and of twice that in backward",
        "link": f"a sleep of bytes / {LINK} s after each message between two gloo processes of one machine",
        "pairs": arguments.pairs,
        "gain": median(gains),
        "gain_interval": interval(gains),
        "goal reached": is_reached,
        "rows": measured,
    }
    arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
