"""List the statements for a GPU that the tests of the laboratory execute, and those that they do not.

    .stacks/kaggle/bin/python -m benchmarks.lab.coverage [--json FILE] [--name NAME] [--tests PATH ...] [--data FOLDER]

Statements for a GPU are those of functions and classes that name CUDA (`cuda_statements.py`). All processes that the
tests start count. What is not executed needs a reason in `unexecuted.toml`; the exit status is 1 if one is missing.
With --data the tests can be run in parts: each call counts what those before it have executed of the same sources.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lab.cuda_statements import PACKAGES, SOURCES, definitions
from coverage import Coverage

ROOT = Path(__file__).parents[2]
REASONS = Path(__file__).with_name("unexecuted.toml")
RESULTS = ROOT / "benchmarks" / "results" / "lab-coverage.json"
Lines = tuple[frozenset[int], frozenset[int]]
"""The executable and the executed lines of a file."""
WHOLE = ("shoestring/training", "shoestring/techniques")
"""Packages of which all statements are counted as well."""

_CONFIGURATION = """
[run]
source = {sources}
data_file = {folder}/data
parallel = true
sigterm = true
concurrency = multiprocessing, thread
patch = _exit
"""
_STARTUP = "import coverage; coverage.process_startup()"


def run_tests(tests: Sequence[str], folder: Path) -> int:
    """Run the tests in the laboratory with every process measured; return pytest's status."""
    configuration = folder / "coveragerc"
    configuration.write_text(_CONFIGURATION.format(sources=SOURCES, folder=folder), encoding="utf-8")
    startup = folder / "startup"
    startup.mkdir(exist_ok=True)
    (startup / "sitecustomize.py").write_text(_STARTUP, encoding="utf-8")
    variables = {
        **os.environ,
        "COVERAGE_PROCESS_START": str(configuration),
        # Python's own monitoring: with a trace function, tests that have limits of time exceed them on busy machines.
        "COVERAGE_CORE": "sysmon",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(startup), os.environ.get("PYTHONPATH", "")])),
        "OMP_NUM_THREADS": "1",
    }
    command = ["-m", "pytest", "-n", "2", "--dist", "loadfile", "-m", "slow or not slow", *tests]
    simulated = [sys.executable, "-m", "benchmarks.rehearse.simulated", "--", *command]
    return subprocess.run(simulated, env=variables, cwd=ROOT, check=False).returncode


def executed_lines(folder: Path) -> dict[str, Lines]:
    """Return the executable and the executed lines of each file of `PACKAGES`, relative to the sources."""
    coverage = Coverage(config_file=str(folder / "coveragerc"))
    coverage.combine(keep=True)
    lines = {}
    for package in PACKAGES:
        for path in (SOURCES / package).rglob("*.py"):
            _, executable, _, missing, _ = coverage.analysis2(str(path))
            lines[str(path.relative_to(SOURCES))] = frozenset(executable), frozenset(executable) - frozenset(missing)
    return lines


def summary(lines: Mapping[str, Lines]) -> dict[str, Any]:
    """Return how many statements were executed, and the definitions with those that were not."""
    for_a_gpu = executed = 0
    unexecuted: dict[str, list[str]] = {}
    for definition in definitions():
        executable, run = (part & definition.lines for part in lines[definition.file])
        for_a_gpu += len(executable)
        executed += len(run)
        text = (SOURCES / definition.file).read_text(encoding="utf-8").splitlines()
        if executable - run:
            statements = [text[line - 1].strip() for line in sorted(executable - run)]
            unexecuted[f"{definition.file}:{definition.name}"] = statements
    packages = {}
    for package in WHOLE:
        parts = [lines[file] for file in lines if file.startswith(f"{package}/")]
        packages[package] = {
            "statements": sum(len(executable) for executable, _ in parts),
            "executed": sum(len(run) for _, run in parts),
        }
    return {
        "for_a_gpu": {"statements": for_a_gpu, "executed": executed},
        "packages": packages,
        "unexecuted": unexecuted,
    }


def without_reason(unexecuted: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the statements that `unexecuted.toml` gives no reason for, as `file:definition: statement`."""
    reasons = tomllib.loads(REASONS.read_text(encoding="utf-8"))
    return [
        f"{definition}: {statement}"
        for definition, statements in unexecuted.items()
        for statement in statements
        if not {"*", statement} & {text for reason in reasons.get(definition, []) for text in reason["statements"]}
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, default=RESULTS, help="file with results by name; default: %(default)s")
    parser.add_argument("--name", default="all of the laboratory", help="of this result; default: %(default)s")
    parser.add_argument("--tests", nargs="+", default=["tests/lab"], help="default: %(default)s")
    parser.add_argument("--data", type=Path, help="folder that keeps what tests execute; default: a temporary one")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="lab-coverage-") as name:
        folder = Path(name) if options.data is None else options.data.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        status = run_tests(options.tests, folder)
        result = summary(executed_lines(folder))
    missing = without_reason(result["unexecuted"])
    results = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else {}
    options.json.write_text(json.dumps({**results, options.name: result}, indent=1) + "\n", encoding="utf-8")
    for part, counts in {"for a GPU": result["for_a_gpu"], **result["packages"]}.items():
        print(f"{part}: {counts['executed']:,} of {counts['statements']:,} statements were executed")
    for line in missing:
        print(f"not executed, without a reason: {line}")
    return 1 if status or missing else 0


if __name__ == "__main__":
    sys.exit(main())
