"""Measure how long before its limit a session ends, on a machine that is kept busy by other processes.

    python -m benchmarks.sessions.limits [--runs 20] [--load 8] [--at-once 1] [--seed 0] [--json OUT]

Each session is the real command with a random limit of 20 to 60 seconds, and its time is measured from outside: from
before the process is started until it has been waited for. Each run has three sessions; the first plans, the others
continue it. The load is the number of processes that compute without end, besides the sessions. The 60 sessions take
about 40 minutes one at a time.
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
OPTIONS = {
    "temporal": ["--set", "size=tiny", "--set", "patience=1000000"],
    "legal": ["--set", "size=tiny", "--set", "epochs=5"],
    "cloud": ["--set", "size=tiny", "--set", "epochs=30"],
}
SESSIONS_OF_A_RUN = 3


@contextmanager
def busy_process() -> Any:
    """Run a process that computes without end."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def run_session(recipe: str, run: Path, limit: float) -> dict[str, Any]:
    """Return how the session ended and its seconds by the clock of this process."""
    command = [sys.executable, "-m", "shoestring", "train", recipe, "--run", str(run), "--limit", f"{limit:.2f}s"]
    started = time.monotonic()
    process = subprocess.run(
        [*command, *OPTIONS[recipe], "--set", "epochs=100000", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    seconds = time.monotonic() - started
    outcome = json.loads(process.stdout) if process.stdout else {}
    return {
        "recipe": recipe,
        "limit": limit,
        "seconds": seconds,
        "left": limit - seconds,
        "status": process.returncode,
        "outcome": outcome.get("status"),
        "update": outcome.get("update"),
        "ended_by_supervisor": "was ended" in outcome.get("reason", ""),
        "load": os.getloadavg()[0],
    }


def measure_run(folder: Path, number: int, seed: int) -> list[dict[str, Any]]:
    """Return the rows of the sessions of one run, the first of which plans."""
    generator, recipe, rows = random.Random(f"{seed} {number}"), list(OPTIONS)[number % len(OPTIONS)], []
    for session in range(SESSIONS_OF_A_RUN):
        row = run_session(recipe, folder / f"run-{number}", generator.uniform(20, 60))
        rows.append({"first": session == 0, **row})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def measure(runs: int, load: int, at_once: int, seed: int) -> list[dict[str, Any]]:
    """Return the rows of the sessions of `runs` runs."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for _ in range(load):
            stack.enter_context(busy_process())
        threads = stack.enter_context(ThreadPoolExecutor(at_once))
        return [
            row for rows in threads.map(lambda number: measure_run(folder, number, seed), range(runs)) for row in rows
        ]


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the numbers of late sessions and of those that the supervisor ended, and the seconds left at the end."""
    left = [row["left"] for row in rows]
    return {
        "sessions": len(rows),
        "first_sessions": sum(row["first"] for row in rows),
        "late": sum(value < 0 for value in left),
        "other_status": sum(row["status"] != 0 for row in rows),
        "ended_by_supervisor": sum(row["ended_by_supervisor"] for row in rows),
        "least_seconds_left": min(left),
        "median_seconds_left": median(left),
        "median_load": median(row["load"] for row in rows),
    }


def main() -> None:
    """Run the sessions and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--load", type=int, default=8)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=RESULTS / "session_limits.json")
    options = parser.parse_args()
    rows = measure(options.runs, options.load, options.at_once, options.seed)
    machine = {
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "busy_processes": options.load,
        "at_once": options.at_once,
    }
    result = {**machine, "summary": summarize(rows), "rows": rows}
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["summary"], indent=1))


if __name__ == "__main__":
    main()
