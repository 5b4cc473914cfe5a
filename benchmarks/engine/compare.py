"""Compare the engine with a hand-written loop, Hugging Face Trainer and Lightning Trainer.

    python -m benchmarks.engine.compare [--rounds 5] [--json OUT]

All train the same model on the same data with the same settings, which takes about five minutes. Lightning is included
if it can be imported; it does not need torchvision:

    pip install --no-deps --target DIR lightning pytorch-lightning lightning-utilities torchmetrics
    PYTHONPATH=DIR python -m benchmarks.engine.compare

Seconds per update are medians over blocks of updates. The contenders run their blocks in turn, each in its own
single-threaded process, one at a time. The stall of a save is the extra time, beyond the median, of the update during
which it happens.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.engine.contenders import CHECKPOINTS, CONTENDERS, LARGE, SMALL

RESULTS = Path(__file__).parents[1] / "results"
REQUIRED_MODULES = {"Hugging Face Trainer": "transformers", "Lightning Trainer": "lightning"}
BLOCK, WARM_UP = 10, 10
SETS = 6
"""Processes per contender: the memory layout of a process changes its speed by up to 3% over its whole lifetime."""
UPDATES, SAVE_EVERY = 161, 40
LARGE_UPDATES, LARGE_SAVE_EVERY = 61, 15
"""The interval is long enough for each save to finish before the next one starts."""
RESUMES = 3
MALLOC_SETTINGS = {
    # Depending on the order of frees, glibc keeps large blocks or returns them to the system, and allocating them again
    # takes a tenth of an update here. That is random and irrelevant on a GPU, so here glibc keeps all blocks.
    "MALLOC_TRIM_THRESHOLD_": str(2**31),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
}
ENVIRONMENT = {"OMP_NUM_THREADS": "1", **MALLOC_SETTINGS}
GOALS = {"slower than the plain loop, at most": 0.01, "stall of a blocking torch.save, at most": 0.1}


class Process:
    """A running contender."""

    def __init__(self, name: str, folder: Path, shape: tuple[int, int] = SMALL, **fields: Any) -> None:
        to_parent, from_child = os.pipe()
        to_child, from_parent = os.pipe()
        os.set_inheritable(from_child, True)
        os.set_inheritable(to_child, True)
        question = {"name": name, "folder": str(folder), "to": from_child, "from": to_child, "shape": shape, **fields}
        self.start_time = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.engine.contenders", json.dumps(question)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(from_child, to_child),
            env={**os.environ, **ENVIRONMENT},
        )
        os.close(from_child)
        os.close(to_child)
        self._answers, self._requests = os.fdopen(to_parent), os.fdopen(from_parent, "w")

    def read_answer(self) -> Any:
        """Read its next answer."""
        line = self._answers.readline()
        if not line:
            assert self._process.stderr is not None
            raise SystemExit(self._process.stderr.read().decode()[-2000:])
        return json.loads(line)

    def run_block(self, updates: int) -> tuple[float, float]:
        """Run `updates` updates and return the wall-clock and the CPU seconds per update."""
        print(updates, file=self._requests, flush=True)
        seconds, cpu_seconds = self.read_answer()
        return seconds / updates, cpu_seconds / updates

    def end(self) -> int:
        """End the process and return its peak resident bytes."""
        self._requests.close()
        assert self._process.stderr is not None
        self._process.stderr.close()
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._answers.close()
        return usage.ru_maxrss * 1024


@dataclass(frozen=True, kw_only=True)
class Row:
    """The measurements of one contender, in seconds and bytes."""

    name: str
    update_seconds: float
    against_plain: float
    """The median over the sets of processes of the ratio to the plain loop, minus 1."""
    against_plain_range: tuple[float, float]
    """The minimum and the maximum over the sets of processes."""
    work_against_plain: float
    """The same ratio in CPU time, which excludes other users of the machine."""
    peak_bytes: int
    saving_peak_bytes: int
    stall_seconds: float
    """Extra seconds of an update with a save, with a state of 48 MiB."""
    large_stall_seconds: float
    """The same with a state of 480 MiB."""
    save_costs_seconds: float
    """Extra seconds of all updates per save: a background writer slows the updates that follow."""
    checkpoint_bytes: int
    resume_seconds: float
    """From starting the process to the end of its first update."""


def rounds(names: list[str], folder: Path, count: int) -> tuple[dict[str, list[tuple[float, float]]], dict[str, int]]:
    """Measure wall-clock and CPU seconds per update in each round, and peak bytes.

    A different contender runs first in each round.
    """
    for name in names:
        (folder / name / "rounds").mkdir(parents=True)
    running = {name: Process(name, folder / name / "rounds", mode="rounds", updates=WARM_UP) for name in names}
    for process in running.values():
        process.read_answer()
    round_seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for number in range(count):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            round_seconds[name].append(running[name].run_block(BLOCK))
    return round_seconds, {name: process.end() for name, process in running.items()}


def stalls(start_times: list[float], saves: list[int]) -> tuple[float, float]:
    """Return the stall of a save and its cost over all updates in seconds, from the start time of each update."""
    durations = [after - before for before, after in pairwise(start_times)]
    typical = median(durations)
    save_stalls = [durations[number - 1] - typical for number in saves if number <= len(durations)]
    return median(save_stalls), (sum(durations[1:]) - typical * (len(durations) - 1)) / len(save_stalls)


def saves_after(name: str, folder: Path, updates: int, every: int) -> list[int]:
    """Return the updates after which a save started; the engine starts saves early so that they finish when due."""
    if name != "shoestring":
        return list(range(every, updates, every))
    events = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    return [event["update"] for event in events if event["event"] == "save" and 0 < event["update"] < updates]


def measure_saving(name: str, folder: Path) -> tuple[float, float, int]:
    """Measure the stall of a save, its cost over all updates, and peak bytes."""
    process = Process(name, folder, mode="saves", updates=UPDATES, save_every=SAVE_EVERY)
    start_times = process.read_answer()
    return *stalls(start_times, saves_after(name, folder, UPDATES, SAVE_EVERY)), process.end()


def measure_large_stall(name: str, folder: Path) -> float:
    """Measure the stall of a save of the large state in seconds."""
    every = LARGE_SAVE_EVERY
    process = Process(name, folder, LARGE, mode="saves", updates=LARGE_UPDATES, save_every=every)
    start_times = process.read_answer()
    process.end()
    return stalls(start_times, saves_after(name, folder, LARGE_UPDATES, every))[0]


def measure_resuming(name: str, folder: Path) -> float:
    """Measure the seconds from the start of a process to the end of its first update."""
    process = Process(name, folder, mode="first", resume=True)
    end_time = float(process.read_answer())
    process.end()
    return end_time - process.start_time


def newest_bytes(name: str, folder: Path) -> int:
    """Return the size of the newest checkpoint."""
    newest = max(folder.glob(CHECKPOINTS[name]), key=lambda path: path.stat().st_mtime)
    files = [newest] if newest.is_file() else [path for path in newest.rglob("*") if path.is_file()]
    return sum(file.stat().st_size for file in files)


def compare(names: list[str], count: int) -> list[Row]:
    """Measure all contenders side by side and return their rows."""
    with tempfile.TemporaryDirectory() as temporary_folder:
        folder = Path(temporary_folder)
        for name in names:
            for part in ("saves", "large"):
                (folder / name / part).mkdir(parents=True)
        sets = [rounds(names, folder / f"set-{number}", count) for number in range(SETS)]
        seconds = {name: [median_pair(round_seconds[name]) for round_seconds, _ in sets] for name in names}
        peaks = {name: max(peak[name] for _, peak in sets) for name in names}
        rows = []
        for name in names:
            stall, cost, saving_peak = measure_saving(name, folder / name / "saves")
            rows.append(
                Row(
                    name=name,
                    update_seconds=median(wall_clock for wall_clock, _ in seconds[name]),
                    against_plain=median_slowdown(seconds, name, 0),
                    against_plain_range=slowdown_range(seconds, name),
                    work_against_plain=median_slowdown(seconds, name, 1),
                    peak_bytes=peaks[name],
                    saving_peak_bytes=saving_peak,
                    stall_seconds=stall,
                    large_stall_seconds=measure_large_stall(name, folder / name / "large"),
                    save_costs_seconds=cost,
                    checkpoint_bytes=newest_bytes(name, folder / name / "saves"),
                    resume_seconds=median(measure_resuming(name, folder / name / "saves") for _ in range(RESUMES)),
                )
            )
        return rows


def median_pair(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the median of the first elements and that of the second elements."""
    first, second = zip(*pairs, strict=True)
    return median(first), median(second)


def median_slowdown(seconds: dict[str, list[tuple[float, float]]], name: str, clock: int) -> float:
    """Return the median slowdown of `name` against the plain loop; `clock` is 0 for wall-clock and 1 for CPU time."""
    pairs = zip(seconds[name], seconds["plain"], strict=True)
    return median(own[clock] / plain[clock] for own, plain in pairs) - 1


def slowdown_range(seconds: dict[str, list[tuple[float, float]]], name: str) -> tuple[float, float]:
    """Return the minimum and the maximum slowdown of `name` against the plain loop."""
    ratios = [own[0] / plain[0] - 1 for own, plain in zip(seconds[name], seconds["plain"], strict=True)]
    return min(ratios), max(ratios)


def goal_results(rows: list[Row]) -> dict[str, bool]:
    """Return whether each goal is reached."""
    by_name = {row.name: row for row in rows}
    ours, plain = by_name["shoestring"], by_name["plain"]
    trainers = [row for row in rows if row not in (ours, plain)]
    overhead, stall = GOALS.values()
    return {
        "at most 1% over the plain loop": ours.against_plain <= overhead,
        "faster than the trainers": all(ours.update_seconds < row.update_seconds for row in trainers),
        "a stall of at most a tenth of torch.save's, 48 MiB": ours.stall_seconds <= stall * plain.stall_seconds,
        "a stall of at most a tenth of torch.save's, 480 MiB": (
            ours.large_stall_seconds <= stall * plain.large_stall_seconds
        ),
    }


def table(rows: list[Row]) -> str:
    """Format the rows as a text table."""

    def milliseconds(seconds: float) -> str:
        return f"{seconds * 1e3:.1f} ms"

    def mebibytes(count: int) -> str:
        return f"{count / 2**20:.0f} MiB"

    lines = [
        [
            "",
            "update",
            "over plain",
            "from, to",
            "in work",
            "peak",
            "with saves",
            "stall",
            "stall, 480 MiB",
            "cost of a save",
            "on disk",
            "resume",
        ]
    ]
    lines += [
        [
            row.name,
            f"{row.update_seconds * 1e3:.2f} ms",
            f"{row.against_plain:+.1%}",
            " ".join(f"{end:+.1%}" for end in row.against_plain_range),
            f"{row.work_against_plain:+.1%}",
            mebibytes(row.peak_bytes),
            mebibytes(row.saving_peak_bytes),
            milliseconds(row.stall_seconds),
            milliseconds(row.large_stall_seconds),
            milliseconds(row.save_costs_seconds),
            mebibytes(row.checkpoint_bytes),
            f"{row.resume_seconds:.2f} s",
        ]
        for row in rows
    ]
    return "\n".join(f"{first:21}" + "".join(f"{cell:>15}" for cell in cells) for first, *cells in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the engine with other trainers.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=RESULTS / "engine.json")
    arguments = parser.parse_args()
    names = [
        name for name in CONTENDERS if name not in REQUIRED_MODULES or importlib.util.find_spec(REQUIRED_MODULES[name])
    ]
    load_before = os.getloadavg()[0]
    rows = compare(names, arguments.rounds)
    print(table(rows))
    for goal, reached in goal_results(rows).items():
        print(f"{'reached' if reached else 'NOT REACHED'}: {goal}")
    if missing := [name for name in CONTENDERS if name not in names]:
        print(f"not installed: {', '.join(missing)}")
    packages = ["torch", *(REQUIRED_MODULES[name] for name in names if name in REQUIRED_MODULES)]
    content = {
        "environment": {
            "python": platform.python_version(),
            "processors": os.cpu_count(),
            "load before": load_before,
            "load after": os.getloadavg()[0],
            **{package: metadata.version(package) for package in packages},
        },
        "goals": goal_results(rows),
        "rows": [vars(row) for row in rows],
    }
    arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
