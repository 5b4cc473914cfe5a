"""Shared parts of the measurements on an NVIDIA GPU: command line, cases, processes, error figures and output file."""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu.cases import Case, cases, tiny

from shoestring.base.units import GIB
from shoestring.hardware import probe
from shoestring.hardware.catalog import DEVICES, Device

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
T4 = DEVICES["t4"]

LARGE_MEMORY_BYTES = 64 * GIB
"""From this memory on, cases run in parallel: each of them needs at most a T4's."""

MIN_CASE_SECONDS = 30
"""No case is started with less remaining time: about the duration of the slowest case."""

TIME_LIMIT = "the time limit was exceeded"
"""The error of a process that measures a case."""

HEADER = f"{'':<12}{'n':>4}{'median':>9}{'p90':>8}{'worst':>8}{'under':>8}"


def build_parser(description: str | None, *, file: str, seconds: float) -> argparse.ArgumentParser:
    """Build the common command line; `file` and `seconds` are defaults."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, default=RESULTS / file, help="output file")
    parser.add_argument("--seconds", type=float, default=seconds, help="no case is started that would end later")
    parser.add_argument("--dry-run", action="store_true", help="run tiny cases on the CPU")
    return parser


def select_cases(*, dry_run: bool) -> tuple[list[Case], Device, str] | None:
    """Return the cases, the device of the estimates, and the torch device of the runs.

    Without a GPU, print an error and return None.
    """
    if dry_run:
        return list(tiny()), T4, "cpu"
    if gpus := probe.gpus():
        return cases(gpus[0].precisions), gpus[0], "cuda"
    print(
        "error: there is no NVIDIA GPU to measure on this machine\nhint: pass --dry-run to test all but the measuring",
        file=sys.stderr,
    )
    return None


def run_module(module: str, question: Mapping[str, Any], seconds: float, *arguments: str) -> dict[str, Any]:
    """Run a module of this folder in a new process and return its answer, or `error` if there is none."""
    command = [sys.executable, "-m", f"benchmarks.gpu.{module}", *arguments]
    try:
        process = subprocess.run(
            command,
            input=json.dumps(question),
            capture_output=True,
            text=True,
            timeout=max(1.0, seconds),
            check=False,
            cwd=ROOT,
        )
    except subprocess.TimeoutExpired:
        return {"error": TIME_LIMIT}
    if process.returncode != 0:
        return {"error": f"status {process.returncode}: {process.stderr.strip()[-400:]}"}
    answer: dict[str, Any] = json.loads(process.stdout)
    return answer


def format_errors(name: str, errors: Sequence[float]) -> str:
    """Format a line of the table below `HEADER` with the relative errors of estimates."""
    if not errors:
        return f"{name:<12}{0:>4}  not measured"
    sizes = sorted(map(abs, errors))
    p90, under = sizes[-(-len(sizes) * 9 // 10) - 1], sum(error < 0 for error in errors) / len(errors)
    return f"{name:<12}{len(errors):>4}{median(sizes):>9.1%}{p90:>8.1%}{sizes[-1]:>8.1%}{under:>8.1%}"


def write_results(out: Path, device: Device, content: Mapping[str, Any]) -> None:
    """Write the file of a measurement with its environment and `content`."""
    out.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"environment": environment(device), **content}, indent=1)
    out.write_text(text + "\n", encoding="utf-8")


def environment(device: Device) -> dict[str, Any]:
    """Return versions and a description of the machine."""
    names = ("torch", "transformers", "peft", "numpy")
    versions = {name: metadata.version(name) for name in names if importlib.util.find_spec(name)}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        **versions,
        "device": device.title,
        **probe.machine(),
    }
