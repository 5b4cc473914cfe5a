"""Rerun benchmarks, and write the tables and numbers of the documentation from their results.

    python -m benchmarks list
    python -m benchmarks run [NAME ...] [--data FOLDER]     # by default all that need nothing else
    python -m benchmarks tables [--check]                   # rewrite the tables and numbers in docs/, or name the pages

`run` writes `benchmarks/results/NAME.json` and records the machine, the versions, the date and the time that it took in
`benchmarks/results/record.json`. A benchmark that fails leaves the earlier result as it is.
"""

import argparse
import json
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.catalogue import BENCHMARKS, DATA, ROOT, Benchmark
from benchmarks.tables import differing_pages, rewrite
from benchmarks.tables.benchmarks import RECORD

from shoestring.base.errors import UsageError


def run(benchmark: Benchmark, data: Path | None) -> bool:
    """Run a benchmark, and return whether it has written a new result."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        words = shlex.split(benchmark.command)
        arguments = [word.replace(DATA, str(data)) if word.startswith(DATA) else word for word in words]
        started = time.monotonic()
        command = [sys.executable, *(str(out) if word == "OUT" else word for word in arguments)]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        if status or not out.exists():
            print(f"{benchmark.name}: exit status {status}, the earlier result stays", file=sys.stderr)
            return False
        benchmark.result.write_bytes(out.read_bytes())
    records = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    records[benchmark.name] = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "versions": {"python": platform.python_version(), "torch": version("torch")},
        "seconds": round(time.monotonic() - started),
    }
    RECORD.write_text(json.dumps(dict(sorted(records.items())), indent=1) + "\n")
    return True


def machine() -> str:
    """Return the processor and the number of its cores."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(names) or 1} cores"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list")
    running = verbs.add_parser("run")
    running.add_argument("names", nargs="*", metavar="NAME")
    running.add_argument("--data", type=Path, help="the folder of published measurements")
    tables = verbs.add_parser("tables")
    tables.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    if options.verb == "list":
        for benchmark in BENCHMARKS:
            print(
                f"{benchmark.name:24}{benchmark.question}" + (f" Needs {benchmark.needs}." if benchmark.needs else "")
            )
        return 0
    if options.verb == "tables":
        try:
            pages = differing_pages() if options.check else rewrite()
        except UsageError as error:  # a file in measurements/ that is not credible
            print(f"error: {error}", file=sys.stderr)
            return 1
        print(*pages, sep="\n")
        return 1 if options.check and pages else 0
    by_name = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    if unknown := sorted(set(options.names) - by_name.keys()):
        parser.error(f"unknown: {', '.join(unknown)}; python -m benchmarks list")
    chosen = [by_name[name] for name in options.names] or [
        benchmark for benchmark in BENCHMARKS if benchmark.can_run and (options.data or not benchmark.needs)
    ]
    outcomes = []
    for benchmark in chosen:
        print(f"{len(outcomes) + 1}/{len(chosen)} {benchmark.name}: {benchmark.question}", file=sys.stderr, flush=True)
        outcomes.append(run(benchmark, options.data))
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
