"""Each recipe in its guide's way and in ours: same model, first weights, data and samples, on the same machine.

    python -m benchmarks.recipes.compare [CASE ...] [--law-ai DIR] [--device cuda] [--rounds 1] [--json OUT]

A guide's way (`guides/`) is written anew after what its code does: its padding, its loader, its forwards, its
precision, its checkpoints; one GPU, where it has two that share a batch. Ours is `shoestring.train` with nothing chosen
but the recipe. Each training is a process of its own, one at a time. DIR has real judgments, as benchmarks/legal says.
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
from benchmarks.recipes.cases import Case, cases
from benchmarks.recipes.contender import WAYS

RESULTS = Path(__file__).parents[1] / "results"
MEMORY_GOAL, CHECKPOINT_GOAL = 0.5, 0.25


def trained(case: Case, way: str, device: str, law_ai: Path | None) -> dict[str, Any]:
    """What contender.py found."""
    answers, to = os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        question = {
            "case": case.name, "way": way, "device": device, "folder": folder, "to": to,
            "law_ai": None if law_ai is None else str(law_ai),
        }  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.recipes.contender", json.dumps(question)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(to,),
        )
        os.close(to)
        # An answer is shorter than what a pipe holds, so it can wait there.
        said = process.communicate()[1].decode()
        with os.fdopen(answers) as file:
            answer = file.read()
    if process.returncode or not answer:
        raise SystemExit(f"{case.name}, {way}: status {process.returncode}\n{said[-3000:]}")
    found: dict[str, Any] = json.loads(answer)
    return found


def compared(case: Case, device: str, law_ai: Path | None, rounds: int) -> dict[str, Any]:
    """Both ways in turn; the medians of each over the rounds, and of the ratio of their speeds."""
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, of_way in found.items():
            of_way.append(trained(case, way, device, law_ai))
    pairs = zip(*found.values(), strict=True)
    ratios = [ours["samples_per_second"] / guide["samples_per_second"] for guide, ours in pairs]
    guide, ours = (over_rounds(of_way) for of_way in found.values())
    return {
        "case": case.name,
        "goal": case.goal,
        "faster": median(ratios),
        "faster_range": [min(ratios), max(ratios)],
        "memory": ours["peak_bytes"] / guide["peak_bytes"],
        "checkpoint": ours["checkpoint_bytes"] / guide["checkpoint_bytes"],
        "guide": guide,
        "shoestring": ours,
    }


def over_rounds(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each number; of what is no number the last."""
    return {
        name: median(each[name] for each in found) if isinstance(value, (int, float)) else value
        for name, value in found[-1].items()
    }


def table(rows: list[dict[str, Any]]) -> str:
    """For a person, as Markdown: the guide's way / ours, and ours as a share of the guide's."""
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
            row["case"],
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
    every = cases(arguments.law_ai)
    if unknown := [name for name in arguments.cases if name not in every]:
        parser.error(f"no case {', '.join(unknown)}; there are: {', '.join(every)}")
    asked = [every[name] for name in arguments.cases or every]
    rows, busy = [], os.getloadavg()[0]
    for case in asked:
        if arguments.device in case.devices:
            rows.append(compared(case, arguments.device, arguments.law_ai, arguments.rounds))
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    print(table(rows))
    packages = ("torch", "transformers", "trl")
    written = {
        "environment": {
            "python": platform.python_version(),
            "processors": os.cpu_count(),
            "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu",
            "load before": busy,
            **{package: metadata.version(package) for package in packages},
        },
        "rows": rows,
    }
    out = arguments.json or RESULTS / f"recipes_{arguments.device}.json"
    out.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
