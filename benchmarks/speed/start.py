"""Time of `shoestring train temporal` from the start of the process to the end of its first update.

    python benchmarks/speed/start.py [--times 5] [--compare OTHER/src] [--set size=tiny ...] [--json OUT]

Every measurement is a new process with its own run directory, which is killed once it has reported its first update.
Importing torch is timed in the same rounds and subtracted. With `--compare`, the other version of the package also runs
in every round, so that other load on the machine affects both. CPU seconds cover the process and the tracing process
of its plan and measure the work; wall-clock seconds also depend on how much of it runs in parallel.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import psutil

RESULTS = Path(__file__).parents[1] / "results"
SOURCE = Path(__file__).parents[2] / "src"

TIMEOUT_SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class Start:
    """The time of one process since its start."""

    seconds: float
    processor_seconds: float


@dataclass(frozen=True, kw_only=True)
class Starts:
    """The measurements of one version of the package, and of importing torch in the same rounds."""

    name: str
    starts: Sequence[Start]
    imports: Sequence[Start]

    def json(self) -> dict[str, Any]:
        """Return the medians as JSON."""
        seconds, processor = _medians(self.starts)
        import_seconds, import_processor = _medians(self.imports)
        return {
            "name": self.name,
            "times": len(self.starts),
            "seconds": seconds,
            "imports": import_seconds,
            "beyond": seconds - import_seconds,
            "processor_seconds": processor,
            "processor_imports": import_processor,
            "processor_beyond": processor - import_processor,
            "least_seconds": min(start.seconds for start in self.starts),
            "most_seconds": max(start.seconds for start in self.starts),
        }


def measure(sources: dict[str, Path], options: Sequence[str], times: int) -> list[Starts]:
    """Measure every version in each of `times` rounds. Raises RuntimeError if one fails."""
    starts: dict[str, list[Start]] = {name: [] for name in sources}
    imports = []
    for _ in range(times):
        imports.append(time_import())
        for name, source in sources.items():
            starts[name].append(time_start(source, options))
    return [Starts(name=name, starts=version_starts, imports=imports) for name, version_starts in starts.items()]


def time_import() -> Start:
    """Time a process that only imports torch."""
    start = time.time()
    output = subprocess.check_output([sys.executable, "-c", "import torch, os; print(*os.times()[:2])"], text=True)
    return Start(seconds=time.time() - start, processor_seconds=sum(map(float, output.split())))


def time_start(source: Path, options: Sequence[str]) -> Start:
    """Time a run of the package in `source` up to its first update."""
    with tempfile.TemporaryDirectory() as folder:
        run, log = Path(folder) / "run", Path(folder) / "log"
        command = [sys.executable, "-m", "shoestring", "train", "temporal", "--run", str(run), *options]
        with log.open("w") as log_file:
            start = time.time()
            process = subprocess.Popen(
                command, stdout=log_file, stderr=log_file, env={**os.environ, "PYTHONPATH": str(source)}
            )
            try:
                update_time = _wait_for_update(process, run / "events.jsonl", start + TIMEOUT_SECONDS)
                processor_seconds = _processor_seconds(process.pid) if update_time else None
            finally:
                process.kill()
                process.wait()
        if update_time is None or processor_seconds is None:
            raise RuntimeError(f"{source} has completed no update:\n{log.read_text()}")
        return Start(seconds=update_time - start, processor_seconds=processor_seconds)


def _processor_seconds(pid: int) -> float:
    """Return the processor time of a process, its descendants, and those of them that have ended."""
    process = psutil.Process(pid)
    return sum(sum(member.cpu_times()[:4]) for member in (process, *process.children(recursive=True)))


def _wait_for_update(process: subprocess.Popen[bytes], events: Path, end: float) -> float | None:
    """Return the time at which the first update was completed, or None if there was none."""
    while process.poll() is None and time.time() < end:
        for line in events.read_text().splitlines() if events.exists() else ():
            if '"progress"' in line and (event := _parse(line)) and event["event"] == "progress":
                return float(event["time"])
        time.sleep(0.02)
    return None


def _parse(line: str) -> dict[str, Any] | None:
    """Parse an event; return None if the line is incomplete."""
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return event


def _medians(starts: Sequence[Start]) -> tuple[float, float]:
    return median(start.seconds for start in starts), median(start.processor_seconds for start in starts)


def table(rows: Sequence[Starts]) -> str:
    lines = [f"{'':<12}{'seconds':>9}{'imports':>9}{'beyond':>9}{'processor':>11}{'beyond':>9}"]
    for row in (starts.json() for starts in rows):
        lines.append(
            f"{row['name']:<12}{row['seconds']:>9.2f}{row['imports']:>9.2f}{row['beyond']:>9.2f}"
            f"{row['processor_seconds']:>11.2f}{row['processor_beyond']:>9.2f}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--times", type=int, default=5, help="number of rounds, of which the median is reported")
    parser.add_argument("--compare", type=Path, metavar="SRC", help="the src folder of another version")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as in shoestring train")
    parser.add_argument("--json", type=Path, default=RESULTS / "start.json", help="output file")
    options = parser.parse_args(arguments)
    if options.compare and not (options.compare / "shoestring").is_dir():
        parser.error(f"there is no package shoestring in {options.compare}")
    sources = {"before": options.compare, "here": SOURCE} if options.compare else {"here": SOURCE}
    rows = measure(sources, [word for value in options.set for word in ("--set", value)], options.times)
    environment = {
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "processors": psutil.cpu_count(),
        "busy at the end": psutil.getloadavg()[0],
    }
    content = {"environment": environment, "set": options.set, "rows": [row.json() for row in rows]}
    options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
