"""Break one thing at a time on purpose, and see which tests of the laboratory fail.

    .stacks/kaggle/bin/python -m benchmarks.lab.breaks [--json FILE] [--only NAME ...]

Each defect is written into a copy of the sources, and the tests that are to see it run on the copy. A defect that is
expected to pass shows what the laboratory cannot see. The exit status is 1 if an expectation was wrong.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEFECTS = Path(__file__).with_suffix(".toml")
RESULTS = ROOT / "benchmarks" / "results" / "lab-breaks.json"


@dataclass(frozen=True, kw_only=True)
class Break:
    """A defect: text of a file of `src/shoestring` and what replaces it."""

    name: str
    file: str
    text: str
    replacement: str
    tests: tuple[str, ...]
    """Those that may see it, in `tests/lab`."""
    is_seen: bool = True
    reason: str = ""
    """Why the laboratory cannot see it."""


def defects() -> list[Break]:
    """Return the defects of `breaks.toml`."""
    rows = tomllib.loads(DEFECTS.read_text(encoding="utf-8"))["defects"]
    return [Break(**{**row, "tests": tuple(row["tests"])}) for row in rows]


def run(defect: Break, folder: Path) -> dict[str, object]:
    """Write a defect into a copy of the sources, run its tests, and return what they saw."""
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    for name in ("src", "tests", "benchmarks", "pyproject.toml"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
        else:
            shutil.copy(source, copy / name)
    path = copy / "src" / "shoestring" / defect.file
    text = path.read_text(encoding="utf-8")
    if text.count(defect.text) != 1:
        raise SystemExit(f"error: {defect.name}: its text occurs {text.count(defect.text)} times in {defect.file}")
    path.write_text(text.replace(defect.text, defect.replacement), encoding="utf-8")
    tests = [f"tests/lab/{name}" for name in defect.tests]
    command = [sys.executable, "-m", "benchmarks.rehearse.simulated", "--", "-m", "pytest", "-n", "2", *tests]
    path_variable = os.pathsep.join([str(copy / "src"), str(copy)])
    started_at = time.monotonic()
    result = subprocess.run(
        command,
        cwd=copy,
        env={**os.environ, "PYTHONPATH": path_variable, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    failed = re.findall(r"^(?:FAILED|ERROR) tests/lab/(\S+)", result.stdout, re.MULTILINE)
    if not failed and result.returncode:
        raise SystemExit(f"error: {defect.name}: the tests did not run\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    return {**asdict(defect), "failed": failed, "seconds": round(time.monotonic() - started_at)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, default=RESULTS, help="output file; default: %(default)s")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of defects; default: all")
    options = parser.parse_args(arguments)
    chosen = [defect for defect in defects() if not options.only or defect.name in options.only]
    rows = []
    with tempfile.TemporaryDirectory(prefix="lab-breaks-") as name:
        for number, defect in enumerate(chosen, 1):
            row = run(defect, Path(name))
            rows.append(row)
            outcome = f"seen by {len(row['failed'])} tests" if row["failed"] else "not seen"
            surprise = "" if bool(row["failed"]) == defect.is_seen else ", which was not expected"
            print(f"{number} of {len(chosen)}: {defect.name}: {outcome}{surprise} ({row['seconds']} s)", flush=True)
    options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return int(any(bool(row["failed"]) != row["is_seen"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
