"""Compare each recipe with its guide: same model, initial weights, data and samples, on the same machine.

    python -m benchmarks.recipes.compare [CASE ...] [--law-ai DIR] [--device cuda] [--rounds 1] [--json OUT]

A guide's training (`guides/`) is a new implementation of what the guide's code does: its padding, data loading,
forwards, precision and checkpoints, on one GPU where the guide splits a batch between two. The other side is
`shoestring.train` with the recipe's options, light weights in fp16, and all other settings from the plan. Neither is
evaluated during training. Each training runs in its own process, one at a time. Rows of cases that are not requested
stay in OUT. DIR contains real judgments; see benchmarks/legal.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import torch
from benchmarks.engine.compare import MALLOC_SETTINGS
from benchmarks.recipes.cases import Case, cases
from benchmarks.recipes.contender import CONTENDERS

RESULTS = Path(__file__).parents[1] / "results"
GOALS = {"legal": 5, "temporal": 5, "cloud": 1.5, "vqa": 2.5, "chart": 1.5}
"""The intended speedup over the guide."""
MEMORY_GOAL, CHECKPOINT_GOAL = 0.5, 0.25


def run_contender(case: Case, contender: str, device: str, law_ai: Path | None) -> dict[str, Any]:
    """Run contender.py and return its measurements."""
    read_end, write_end = os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        question = {
            "case": case.name, "way": contender, "device": device, "folder": folder, "to": write_end,
            "law_ai": None if law_ai is None else str(law_ai),
        }  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.recipes.contender", json.dumps(question)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(write_end,),
            env={**os.environ, **MALLOC_SETTINGS},
        )
        os.close(write_end)
        # The answer is smaller than the buffer of a pipe, so the process does not wait for a reader.
        stderr = process.communicate()[1].decode()
        with os.fdopen(read_end) as file:
            answer = file.read()
    if process.returncode or not answer:
        raise SystemExit(f"{case.name}, {contender}: status {process.returncode}\n{stderr[-3000:]}")
    measurements: dict[str, Any] = json.loads(answer)
    return measurements


def compare(case: Case, device: str, law_ai: Path | None, rounds: int) -> list[dict[str, Any]]:
    """Run all contenders in turn; return medians over the rounds, and the median speedup over the guide."""
    contenders = [
        contender
        for contender in CONTENDERS
        if "bf16" not in contender or (case.half_on_cpu and device == "cpu" and has_bf16())
    ]
    results: dict[str, list[dict[str, Any]]] = {contender: [] for contender in contenders}
    for _ in range(rounds):
        for contender, measurements in results.items():
            measurements.append(run_contender(case, contender, device, law_ai))
    guide = medians(results["guide"])
    return [
        {
            "case": case.name,
            "way": contender,
            "goal": GOALS[case.recipe],
            **speedup(results["guide"], measurements),
            "memory": ours["peak_bytes"] / guide["peak_bytes"],
            "checkpoint": ours["checkpoint_bytes"] / guide["checkpoint_bytes"],
            "guide": guide,
            "shoestring": ours,
        }
        for contender, measurements in results.items()
        if contender != "guide" and (ours := medians(measurements))
    ]


def has_bf16() -> bool:
    """Return whether this CPU has bf16 units."""
    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def speedup(guide: list[dict[str, Any]], ours: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median and the range of the speedup, computed for each pair of runs."""
    pairs = zip(guide, ours, strict=True)
    ratios = [our_run["samples_per_second"] / guide_run["samples_per_second"] for guide_run, our_run in pairs]
    return {"faster": median(ratios), "faster_range": [min(ratios), max(ratios)]}


def medians(measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of every numeric value, and the last of every other value."""
    return {
        name: median(measurement[name] for measurement in measurements) if isinstance(value, (int, float)) else value
        for name, value in measurements[-1].items()
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Format a Markdown table: the guide / Shoestring, and Shoestring as a share of the guide."""
    lines = [
        "| case | samples a second | faster | peak memory | share | checkpoint | share | loss | ours |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        guide, ours = row["guide"], row["shoestring"]
        goals = (row["faster"] >= row["goal"], row["memory"] <= MEMORY_GOAL, row["checkpoint"] <= CHECKPOINT_GOAL)
        faster, memory, checkpoint = ("" if reached else " (no)" for reached in goals)
        settings = ours.get("settings", {})
        cells = [
            row["case"] + row["way"].removeprefix("shoestring"),
            f"{guide['samples_per_second']:.3g} / {ours['samples_per_second']:.3g}",
            f"{row['faster']:.1f}x of {row['goal']:g}x{faster}",
            f"{guide['peak_bytes'] / 2**20:,.0f} / {ours['peak_bytes'] / 2**20:,.0f} MiB",
            f"{row['memory']:.2f}{memory}",
            f"{guide['checkpoint_bytes'] / 1e6:,.1f} / {ours['checkpoint_bytes'] / 1e6:,.1f} MB",
            f"{row['checkpoint']:.2f}{checkpoint}",
            f"{'' if ours['judged_by'] == 'loss' else ours['judged_by'] + ' '}{guide['loss']:.3f} / {ours['loss']:.3f}",
            " · ".join(f"{name} {value}" for name, value in settings.items()),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--law-ai", type=Path)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    all_cases = cases(arguments.law_ai)
    if unknown := [name for name in arguments.cases if name not in all_cases]:
        parser.error(f"unknown case {', '.join(unknown)}; the cases are: {', '.join(all_cases)}")
    requested_names = arguments.cases or all_cases
    requested = [all_cases[name] for name in requested_names if arguments.device in all_cases[name].devices]
    out = arguments.json or RESULTS / f"recipes_{arguments.device}.json"
    rows = json.loads(out.read_text())["rows"] if out.exists() else []
    for case in requested:
        load_before = os.getloadavg()[0]
        case_rows = compare(case, arguments.device, arguments.law_ai, arguments.rounds)
        print("\n".join(table(case_rows).splitlines()[2:]), flush=True)
        rows = [row for row in rows if row["case"] != case.name] + [
            {**row, "load before": load_before} for row in case_rows
        ]
        # Written after each case, so that a later failure does not lose its measurements.
        out.write_text(json.dumps({"environment": environment(arguments.device), "rows": rows}, indent=1) + "\n")
    print(table(rows))


def environment(device: str) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        **{package: metadata.version(package) for package in ("torch", "transformers", "trl")},
    }


if __name__ == "__main__":
    main()
