"""The engine beside a hand-written loop, Hugging Face Trainer and Lightning Trainer: same model, data and settings.

    python -m benchmarks.engine.compare [--rounds 5] [--json OUT]

Takes some five minutes. Lightning is used where it can be imported; it needs no torchvision:

    pip install --no-deps --target DIR lightning pytorch-lightning lightning-utilities torchmetrics
    PYTHONPATH=DIR python -m benchmarks.engine.compare

Seconds per update are medians of blocks of updates that the contenders run in turn, each in its own process, one at a
time and on one thread. A save's stall is what the update that it falls into takes longer than the median one.
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
NEEDS = {"Hugging Face Trainer": "transformers", "Lightning Trainer": "lightning"}
BLOCK, WARM_UP = 10, 10
SETS = 6
"""Processes of each: where one's memory happens to lie makes it up to 3% faster or slower from beginning to end."""
UPDATES, SAVE_EVERY = 161, 40
LARGE_UPDATES, LARGE_SAVE_EVERY = 61, 15
"""Each save has ended before the next one begins."""
RESUMES = 3
KEEPING = {
    # glibc gives large blocks back to the system or keeps them, as the order in which they are freed has it, and
    # getting them again takes a tenth of an update here. That is chance, and nothing of it is on a GPU: it keeps all.
    "MALLOC_TRIM_THRESHOLD_": str(2**31),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
}
ENVIRONMENT = {"OMP_NUM_THREADS": "1", **KEEPING}
GOALS = {"slower than the plain loop, at most": 0.01, "stall of a blocking torch.save, at most": 0.1}


class Process:
    """One contender under way."""

    def __init__(self, name: str, folder: Path, shape: tuple[int, int] = SMALL, **question: Any) -> None:
        to_parent, from_child = os.pipe()
        to_child, from_parent = os.pipe()
        os.set_inheritable(from_child, True)
        os.set_inheritable(to_child, True)
        asked = {"name": name, "folder": str(folder), "to": from_child, "from": to_child, "shape": shape, **question}
        self.started = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.engine.contenders", json.dumps(asked)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(from_child, to_child),
            env={**os.environ, **ENVIRONMENT},
        )
        os.close(from_child)
        os.close(to_child)
        self._answers, self._asks = os.fdopen(to_parent), os.fdopen(from_parent, "w")

    def answer(self) -> Any:
        """The next thing it says."""
        line = self._answers.readline()
        if not line:
            assert self._process.stderr is not None
            raise SystemExit(self._process.stderr.read().decode()[-2000:])
        return json.loads(line)

    def block(self, updates: int) -> tuple[float, float]:
        """Seconds per update of the next so many, and seconds of a processor."""
        print(updates, file=self._asks, flush=True)
        seconds, worked = self.answer()
        return seconds / updates, worked / updates

    def end(self) -> int:
        """The most bytes of it that were resident."""
        self._asks.close()
        assert self._process.stderr is not None
        self._process.stderr.close()
        _, status, used = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._answers.close()
        return used.ru_maxrss * 1024


@dataclass(frozen=True, kw_only=True)
class Row:
    """Of one contender; seconds and bytes."""

    name: str
    update_seconds: float
    against_plain: float
    """The median over sets of processes of the ratio to the plain loop, minus 1."""
    against_plain_range: tuple[float, float]
    """The least and the most of it: how far processes differ."""
    work_against_plain: float
    """The same of the processor's time, in which others that use the machine do not count."""
    peak_bytes: int
    saving_peak_bytes: int
    stall_seconds: float
    """What the update with a save takes longer; a state of 48 MiB."""
    large_stall_seconds: float
    """The same of a state of 480 MiB."""
    save_costs_seconds: float
    """What all updates together take longer, for each save: a background writer slows those that follow."""
    checkpoint_bytes: int
    resume_seconds: float
    """From starting the process to the end of its first update."""


def rounds(names: list[str], folder: Path, count: int) -> tuple[dict[str, list[tuple[float, float]]], dict[str, int]]:
    """Seconds per update in each round (of the clock, of a processor), and peak bytes.

    Who comes first changes from round to round.
    """
    for name in names:
        (folder / name / "rounds").mkdir(parents=True)
    running = {name: Process(name, folder / name / "rounds", mode="rounds", updates=WARM_UP) for name in names}
    for process in running.values():
        process.answer()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for number in range(count):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            found[name].append(running[name].block(BLOCK))
    return found, {name: process.end() for name, process in running.items()}


def stalls(stamps: list[float], saves: list[int]) -> tuple[float, float]:
    """From when each update began: (a save's stall, a save's cost over all updates), in seconds."""
    took = [after - before for before, after in pairwise(stamps)]
    usual = median(took)
    with_save = [took[number - 1] - usual for number in saves if number <= len(took)]
    return median(with_save), (sum(took[1:]) - usual * (len(took) - 1)) / len(with_save)


def saves_after(name: str, folder: Path, updates: int, every: int) -> list[int]:
    """The updates that a save began after: the engine begins them so early that they are whole when they are due."""
    if name != "shoestring":
        return list(range(every, updates, every))
    events = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    return [event["update"] for event in events if event["event"] == "save" and 0 < event["update"] < updates]


def saving(name: str, folder: Path) -> tuple[float, float, int]:
    """(A save's stall, its cost over all updates, peak bytes)."""
    process = Process(name, folder, mode="saves", updates=UPDATES, save_every=SAVE_EVERY)
    stamps = process.answer()
    return *stalls(stamps, saves_after(name, folder, UPDATES, SAVE_EVERY)), process.end()


def large_stall(name: str, folder: Path) -> float:
    """Seconds that a save of the large state stalls for."""
    every = LARGE_SAVE_EVERY
    process = Process(name, folder, LARGE, mode="saves", updates=LARGE_UPDATES, save_every=every)
    stamps = process.answer()
    process.end()
    return stalls(stamps, saves_after(name, folder, LARGE_UPDATES, every))[0]


def resuming(name: str, folder: Path) -> float:
    """Seconds from the start of a process to the end of its first update."""
    process = Process(name, folder, mode="first", resume=True)
    ended = float(process.answer())
    process.end()
    return ended - process.started


def newest_bytes(name: str, folder: Path) -> int:
    """Of the newest checkpoint."""
    newest = max(folder.glob(CHECKPOINTS[name]), key=lambda path: path.stat().st_mtime)
    files = [newest] if newest.is_file() else [path for path in newest.rglob("*") if path.is_file()]
    return sum(file.stat().st_size for file in files)


def compare(names: list[str], count: int) -> list[Row]:
    """Every contender's row, measured side by side."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in names:
            for part in ("saves", "large"):
                (folder / name / part).mkdir(parents=True)
        sets = [rounds(names, folder / f"set-{number}", count) for number in range(SETS)]
        seconds = {name: [median_pair(found[name]) for found, _ in sets] for name in names}
        peaks = {name: max(peak[name] for _, peak in sets) for name in names}
        rows = []
        for name in names:
            stall, cost, saving_peak = saving(name, folder / name / "saves")
            rows.append(
                Row(
                    name=name,
                    update_seconds=median(clock for clock, _ in seconds[name]),
                    against_plain=over(seconds, name, 0),
                    against_plain_range=extremes(seconds, name),
                    work_against_plain=over(seconds, name, 1),
                    peak_bytes=peaks[name],
                    saving_peak_bytes=saving_peak,
                    stall_seconds=stall,
                    large_stall_seconds=large_stall(name, folder / name / "large"),
                    save_costs_seconds=cost,
                    checkpoint_bytes=newest_bytes(name, folder / name / "saves"),
                    resume_seconds=median(resuming(name, folder / name / "saves") for _ in range(RESUMES)),
                )
            )
        return rows


def median_pair(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Of the first ones and of the second ones."""
    first, second = zip(*pairs, strict=True)
    return median(first), median(second)


def over(seconds: dict[str, list[tuple[float, float]]], name: str, which: int) -> float:
    """By how much of its time `name` is slower than the plain loop, in the median set of processes."""
    rounds_of_both = zip(seconds[name], seconds["plain"], strict=True)
    return median(own[which] / plain[which] for own, plain in rounds_of_both) - 1


def extremes(seconds: dict[str, list[tuple[float, float]]], name: str) -> tuple[float, float]:
    """The least and the most by which `name` is slower than the plain loop."""
    ratios = [own[0] / plain[0] - 1 for own, plain in zip(seconds[name], seconds["plain"], strict=True)]
    return min(ratios), max(ratios)


def held(rows: list[Row]) -> dict[str, bool]:
    """Which goals are reached."""
    by_name = {row.name: row for row in rows}
    ours, plain = by_name["shoestring"], by_name["plain"]
    others = [row for row in rows if row not in (ours, plain)]
    overhead, stall = GOALS.values()
    return {
        "at most 1% over the plain loop": ours.against_plain <= overhead,
        "faster than the trainers": all(ours.update_seconds < row.update_seconds for row in others),
        "a stall of at most a tenth of torch.save's, 48 MiB": ours.stall_seconds <= stall * plain.stall_seconds,
        "a stall of at most a tenth of torch.save's, 480 MiB": (
            ours.large_stall_seconds <= stall * plain.large_stall_seconds
        ),
    }


def table(rows: list[Row]) -> str:
    """The rows for a person."""

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
    return "\n".join(f"{first:21}" + "".join(f"{cell:>15}" for cell in others) for first, *others in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="The engine beside others.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=RESULTS / "engine.json")
    arguments = parser.parse_args()
    names = [name for name in CONTENDERS if name not in NEEDS or importlib.util.find_spec(NEEDS[name])]
    busy = os.getloadavg()[0]
    rows = compare(names, arguments.rounds)
    print(table(rows))
    for goal, reached in held(rows).items():
        print(f"{'held' if reached else 'NOT HELD'}: {goal}")
    if missing := [name for name in CONTENDERS if name not in names]:
        print(f"not there: {', '.join(missing)}")
    packages = ["torch", *(NEEDS[name] for name in names if name in NEEDS)]
    written = {
        "environment": {
            "python": platform.python_version(),
            "processors": os.cpu_count(),
            "load before": busy,
            "load after": os.getloadavg()[0],
            **{package: metadata.version(package) for package in packages},
        },
        "goals": held(rows),
        "rows": [vars(row) for row in rows],
    }
    arguments.json.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
