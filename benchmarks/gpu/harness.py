"""A measurement on this machine's NVIDIA GPU, whatever is measured: cases, a process for each, their errors, a file."""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu.cases import Case, cases, tiny

from shoestring.hardware import probe
from shoestring.hardware.catalog import DEVICES, Device

RESULTS = Path(__file__).parents[1] / "results"
T4 = DEVICES["t4"]

LEAST_SECONDS = 45
"""No case is begun with less time left: about the slowest one's."""

HEADER = f"{'':<12}{'n':>4}{'median':>9}{'p90':>8}{'worst':>8}{'under':>8}"


def parser(about: str | None, *, file: str, seconds: float) -> argparse.ArgumentParser:
    """What both command lines have; `file` and `seconds` are defaults."""
    made = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    made.add_argument("--json", type=Path, default=RESULTS / file, help="where the rows are written")
    made.add_argument("--seconds", type=float, default=seconds, help="no case is begun that would end later")
    made.add_argument("--dry-run", action="store_true", help="tiny cases on the CPU")
    return made


def asked(*, dry_run: bool) -> tuple[list[Case], Device, str] | None:
    """The cases, the device of their estimates, and what torch calls that of their runs; without a GPU none, and why is
    told."""
    if dry_run:
        return list(tiny()), T4, "cpu"
    if found := probe.gpus():
        return cases(found[0].precisions), found[0], "cuda"
    print(
        "error: there is no NVIDIA GPU here to measure\nhint: --dry-run tries everything but the measuring",
        file=sys.stderr,
    )
    return None


def answered(script: str, question: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """What a fresh process of the script beside this file says; `error` where it says nothing."""
    # -P: not the script's own folder, where time.py would be the standard library's `time`.
    command = [sys.executable, "-P", str(Path(__file__).with_name(script))]
    try:
        done = subprocess.run(
            command, input=json.dumps(question), capture_output=True, text=True, timeout=max(1.0, seconds), check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": "the time was over"}
    if done.returncode != 0:
        return {"error": f"status {done.returncode}: {done.stderr.strip()[-400:]}"}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def figures(name: str, errors: Sequence[float]) -> str:
    """A line of the table under `HEADER`: relative errors of estimates."""
    if not errors:
        return f"{name:<12}{0:>4}  not measured"
    sizes = sorted(map(abs, errors))
    p90, under = sizes[-(-len(sizes) * 9 // 10) - 1], sum(error < 0 for error in errors) / len(errors)
    return f"{name:<12}{len(errors):>4}{median(sizes):>9.1%}{p90:>8.1%}{sizes[-1]:>8.1%}{under:>8.1%}"


def write(out: Path, device: Device, content: Mapping[str, Any]) -> None:
    """The file of a measurement: where it was made, and `content`."""
    out.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"environment": environment(device), **content}, indent=1)
    out.write_text(text + "\n", encoding="utf-8")


def environment(device: Device) -> dict[str, Any]:
    """Versions and the machine."""
    names = ("torch", "transformers", "peft", "numpy")
    versions = {name: metadata.version(name) for name in names if importlib.util.find_spec(name)}
    return {"python": platform.python_version(), **versions, "device": device.title, **probe.machine()}
