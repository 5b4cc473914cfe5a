"""Disturb runs by random sequences of faults, and compare the bits of each with those of an undisturbed run.

    python -m benchmarks.faults --seeds 0:300 --json OUT [--minutes 40]

A seed stands for a sequence: a run of several sessions, and the faults of each (`tests/crash/machine.py`). The result
of each sequence is added to OUT when it is finished, so the command can be stopped and repeated until it has all seeds.
A sequence that fails is made smaller, and printed with its seed.
"""

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.crash import counts_of_machine as counts
from tests.crash.machine import Machine, seeds_of, sequence_of

Result = dict[str, Any]


def environment() -> dict[str, str | int | None]:
    return {
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        **{name: version(name) for name in ("shoestring", "torch", "transformers")},
    }


def read(path: Path) -> dict[int, Result]:
    """Return the results of the finished seeds in a file that an earlier call has written."""
    rows = json.loads(path.read_text())["rows"] if path.exists() and path.stat().st_size else []
    return {row["seed"]: row for row in rows}


def write(path: Path, results: dict[int, Result]) -> None:
    rows = [results[seed] for seed in sorted(results)]
    report = {"environment": environment(), **counts.summary(rows), "rows": rows}
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in report.items() if name != "rows"]
    table = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    temporary = path.with_suffix(".new")
    temporary.write_text("{\n" + ",\n".join(lines) + ',\n "rows": [\n' + table + "\n ]\n}\n")
    temporary.replace(path)


def time_left(seconds: float, finished: int, remaining: int) -> str:
    minutes = seconds / finished * remaining / 60
    return f"{minutes / 60:.1f} h left" if minutes > 90 else f"{minutes:.0f} min left"


def campaign(folder: Path, seeds: range, path: Path, *, minutes: float | None) -> dict[int, Result]:
    """Run the seeds that have no result yet, for so many minutes at most."""
    results = read(path)
    missing = [seed for seed in seeds if seed not in results]
    machine, start = Machine(folder), time.monotonic()
    try:
        for finished, seed in enumerate(missing, 1):
            if minutes is not None and time.monotonic() - start >= 60 * minutes:
                break
            result = machine.run_and_shrink(sequence_of(seed))
            results[seed] = result
            write(path, results)
            left = time_left(time.monotonic() - start, finished, len(missing) - finished)
            failed = sum(row["outcome"] == "failed" for row in results.values())
            progress = f"{len(seeds) - len(missing) + finished} of {len(seeds)} sequences, {failed} failed, {left}"
            print(f"seed {seed}: {result['outcome']}, {result['seconds']} s; {progress}", file=sys.stderr, flush=True)
    finally:
        machine.close()
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=seeds_of, default=range(300))
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--minutes", type=float, help="begin no further sequence after this time")
    parser.add_argument("--folder", type=Path, help="of the files of sequences that fail")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="faults-"))
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # ends the session and unmounts its disk
    results = campaign(folder, options.seeds, options.json, minutes=options.minutes)
    failed = [seed for seed, result in results.items() if result["outcome"] == "failed"]
    if failed:
        print(f"failed: seeds {', '.join(map(str, failed))}; their files are in {folder}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
