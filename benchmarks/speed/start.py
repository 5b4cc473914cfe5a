"""How long `shoestring train temporal` takes from nothing to the end of its first update.

    python benchmarks/speed/start.py [--times 5] [--compare OTHER/src] [--set size=tiny ...] [--json OUT]

Each time a fresh process with a run's directory of its own, which ends when it has told of its first update. Importing
torch is timed in the same rounds, for what counts is beyond it. With `--compare` the other version of the package has
its turn in every round, so that whatever else the machine does meets both. Processor seconds, of the process and the
one that follows the update for its plan, say what is done; seconds also how much of it at the same time.
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
HERE = Path(__file__).parents[2] / "src"

PATIENCE_SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class Start:
    """One process, from its beginning on."""

    seconds: float
    processor_seconds: float


@dataclass(frozen=True, kw_only=True)
class Starts:
    """Those of one version of the package, and of importing torch in the same rounds."""

    name: str
    starts: Sequence[Start]
    imports: Sequence[Start]

    def json(self) -> dict[str, Any]:
        """Medians."""
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
    """So many rounds, in each of which every version has its turn. Raises RuntimeError where one fails."""
    starts: dict[str, list[Start]] = {name: [] for name in sources}
    imports = []
    for _ in range(times):
        imports.append(imported())
        for name, source in sources.items():
            starts[name].append(started(source, options))
    return [Starts(name=name, starts=each, imports=imports) for name, each in starts.items()]


def imported() -> Start:
    """A process that imports torch and no more."""
    began = time.time()
    words = subprocess.check_output([sys.executable, "-c", "import torch, os; print(*os.times()[:2])"], text=True)
    return Start(seconds=time.time() - began, processor_seconds=sum(map(float, words.split())))


def started(source: Path, options: Sequence[str]) -> Start:
    """A run of the package in `source` up to its first update."""
    with tempfile.TemporaryDirectory() as place:
        run, talk = Path(place) / "run", Path(place) / "talk"
        command = [sys.executable, "-m", "shoestring", "train", "temporal", "--run", str(run), *options]
        with talk.open("w") as written:
            began = time.time()
            process = subprocess.Popen(
                command, stdout=written, stderr=written, env={**os.environ, "PYTHONPATH": str(source)}
            )
            try:
                told = _told(process, run / "events.jsonl", began + PATIENCE_SECONDS)
                spent = psutil.Process(process.pid).cpu_times() if told else None
            finally:
                process.kill()
                process.wait()
        if told is None or spent is None:
            raise RuntimeError(f"{source} has made no update:\n{talk.read_text()}")
        return Start(
            seconds=told - began,
            processor_seconds=spent.user + spent.system + spent.children_user + spent.children_system,
        )


def _told(process: subprocess.Popen[bytes], events: Path, end: float) -> float | None:
    """When the first update was done; None where there was none."""
    while process.poll() is None and time.time() < end:
        for line in events.read_text().splitlines() if events.exists() else ():
            if '"progress"' in line and (event := _parsed(line)) and event["event"] == "progress":
                return float(event["time"])
        time.sleep(0.02)
    return None


def _parsed(line: str) -> dict[str, Any] | None:
    """None for one that is being written."""
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return event


def _medians(starts: Sequence[Start]) -> tuple[float, float]:
    return median(each.seconds for each in starts), median(each.processor_seconds for each in starts)


def table(rows: Sequence[Starts]) -> str:
    lines = [f"{'':<12}{'seconds':>9}{'imports':>9}{'beyond':>9}{'processor':>11}{'beyond':>9}"]
    for row in (each.json() for each in rows):
        lines.append(
            f"{row['name']:<12}{row['seconds']:>9.2f}{row['imports']:>9.2f}{row['beyond']:>9.2f}"
            f"{row['processor_seconds']:>11.2f}{row['processor_beyond']:>9.2f}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--times", type=int, default=5, help="rounds, of which the median counts")
    parser.add_argument("--compare", type=Path, metavar="SRC", help="another version's src")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of shoestring train")
    parser.add_argument("--json", type=Path, default=RESULTS / "start.json", help="where the result is written")
    options = parser.parse_args(arguments)
    if options.compare and not (options.compare / "shoestring").is_dir():
        parser.error(f"there is no package shoestring in {options.compare}")
    sources = {"before": options.compare, "here": HERE} if options.compare else {"here": HERE}
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
