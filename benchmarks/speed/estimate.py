"""Time and memory of the processes of `shoestring estimate` and `shoestring plan`.

    python benchmarks/speed/estimate.py [--verb plan] [--times 3] [--json OUT] [NAME ...]

Imports are timed in the same run, because the goals exclude them. The goals of an estimate are 4 s for `legal` (110M
parameters), 20 s for `chart` (Qwen2.5-VL-3B with LoRA) and 2 GiB for both; those of a plan are 10 s and 60 s.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import psutil

RESULTS = Path(__file__).parents[1] / "results"

COMMANDS: dict[str, tuple[list[str], str]] = {
    "legal": (["--set", "micro_batch=16"], "torch, transformers"),
    "chart": (["--set", "micro_batch=1", "--set", "precision=fp16"], "torch, transformers, peft"),
    "vqa": (["--set", "micro_batch=8", "--set", "precision=fp16"], "torch, transformers"),
    "cloud": (["--set", "micro_batch=4", "--set", "precision=fp16"], "torch"),
    "temporal": (["--set", "precision=fp16"], "torch, pandas"),
}
"""Further arguments of `shoestring estimate NAME --on t4`, and the imports of its trace. Plans have no arguments."""

GOALS = {"estimate": {"legal": 4.0, "chart": 20.0}, "plan": {"legal": 10.0, "chart": 60.0}}
"""Seconds without imports, by verb."""

GOAL_BYTES = 2 * 2**30


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Medians in seconds, and the peak resident bytes of all processes in total."""

    name: str
    verb: str
    seconds: float
    imports: float
    peak_bytes: int

    @property
    def beyond(self) -> float:
        return self.seconds - self.imports

    @property
    def goal(self) -> float | None:
        return GOALS[self.verb].get(self.name)

    def json(self) -> dict[str, Any]:
        return {**vars(self), "beyond": self.beyond, "goal_seconds": self.goal, "goal_bytes": GOAL_BYTES}


def measure(name: str, times: int, verb: str = "estimate") -> Timing:
    """Time `times` runs of the command and of its imports. Raises CalledProcessError if one fails."""
    options, imports = COMMANDS[name]
    target, options = ("kaggle-t4", []) if verb == "plan" else ("t4", options)
    command = [sys.executable, "-m", "shoestring", verb, name, "--on", target, "--json", *options]
    runs = [run_timed(command) for _ in range(times)]
    import_seconds = [run_timed([sys.executable, "-c", f"import {imports}"])[0] for _ in range(times)]
    return Timing(
        name=name,
        verb=verb,
        seconds=median(seconds for seconds, _ in runs),
        imports=median(import_seconds),
        peak_bytes=max(peak for _, peak in runs),
    )


def run_timed(command: Sequence[str]) -> tuple[float, int]:
    """Run `command`; return its seconds, and the peak resident bytes of its processes, sampled every 50 ms."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        peak = max(peak, _resident_bytes(psutil.Process(process.pid)))
        time.sleep(0.05)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(command))
    return time.perf_counter() - start, peak


def table(timings: Sequence[Timing]) -> str:
    lines = [f"{'':<10}{'seconds':>9}{'imports':>9}{'beyond':>9}{'goal':>7}{'MiB':>7}"]
    for timing in timings:
        goal = timing.goal
        lines.append(
            f"{timing.name:<10}{timing.seconds:>9.1f}{timing.imports:>9.1f}{timing.beyond:>9.1f}"
            f"{f'{goal:.0f}' if goal else '':>7}{timing.peak_bytes / 2**20:>7.0f}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(COMMANDS)}; the default is all")
    parser.add_argument("--verb", choices=tuple(GOALS), default="estimate", help="the command to time")
    parser.add_argument("--times", type=int, default=3, help="number of runs, of which the median is reported")
    parser.add_argument("--json", type=Path, help="output file")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in COMMANDS]
    if unknown:
        parser.error(f"unknown names: {', '.join(unknown)}; the names are: {', '.join(COMMANDS)}")
    timings = [measure(name, options.times, options.verb) for name in options.names or COMMANDS]
    environment = {
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "processors": psutil.cpu_count(),
        "busy at the end": psutil.getloadavg()[0],
    }
    content = {"environment": environment, "rows": [timing.json() for timing in timings]}
    out = options.json or RESULTS / f"{options.verb}_speed.json"
    out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(table(timings))
    return 0


def _resident_bytes(process: psutil.Process) -> int:
    total = 0
    try:
        for member in [process, *process.children(recursive=True)]:
            total += member.memory_info().rss
    except psutil.NoSuchProcess:
        return total
    return total


if __name__ == "__main__":
    raise SystemExit(main())
