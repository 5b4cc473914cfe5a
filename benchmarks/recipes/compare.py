"""Each recipe in its guide's way and in ours: same model, first weights, data and samples, on the same machine.

    python -m benchmarks.recipes.compare [CASE ...] [--law-ai DIR] [--device cuda] [--rounds 1] [--json OUT]

A guide's way (`guides/`) is written anew after what its code does: its padding, its loader, its forwards, its
precision, its checkpoints; one GPU, where it has two that share a batch. Ours is `shoestring.train` with the recipe's
options, weights for use kept in fp16, and all else as the plan has it. Neither is evaluated while it trains. Each
training is a process of its own, one at a time. Rows of cases that are not asked for stay in OUT. DIR has real
judgments, as benchmarks/legal says.
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
from benchmarks.engine.compare import KEEPING
from benchmarks.recipes.cases import Case, cases
from benchmarks.recipes.contender import WAYS

RESULTS = Path(__file__).parents[1] / "results"
GOALS = {"legal": 5, "temporal": 5, "cloud": 1.5, "vqa": 2.5, "chart": 1.5}
"""How many times as fast ours should be."""
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
            env={**os.environ, **KEEPING},
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


def compared(case: Case, device: str, law_ai: Path | None, rounds: int) -> list[dict[str, Any]]:
    """Every way in turn; the medians of each over the rounds, and of the ratios of ours to the guide's speed."""
    ways = [way for way in WAYS if "bf16" not in way or (case.half_on_cpu and device == "cpu" and has_bf16())]
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, of_way in found.items():
            of_way.append(trained(case, way, device, law_ai))
    guide = over_rounds(found["guide"])
    return [
        {
            "case": case.name,
            "way": way,
            "goal": GOALS[case.recipe],
            **against(found["guide"], of_way),
            "memory": ours["peak_bytes"] / guide["peak_bytes"],
            "checkpoint": ours["checkpoint_bytes"] / guide["checkpoint_bytes"],
            "guide": guide,
            "shoestring": ours,
        }
        for way, of_way in found.items()
        if way != "guide" and (ours := over_rounds(of_way))
    ]


def has_bf16() -> bool:
    """Whether this processor has units for it."""
    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def against(guide: list[dict[str, Any]], ours: list[dict[str, Any]]) -> dict[str, Any]:
    """How many times as fast ours is, pair by pair."""
    pairs = zip(guide, ours, strict=True)
    ratios = [mine["samples_per_second"] / theirs["samples_per_second"] for theirs, mine in pairs]
    return {"faster": median(ratios), "faster_range": [min(ratios), max(ratios)]}


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
    every = cases(arguments.law_ai)
    if unknown := [name for name in arguments.cases if name not in every]:
        parser.error(f"no case {', '.join(unknown)}; there are: {', '.join(every)}")
    asked = [every[name] for name in arguments.cases or every if arguments.device in every[name].devices]
    out = arguments.json or RESULTS / f"recipes_{arguments.device}.json"
    rows = json.loads(out.read_text())["rows"] if out.exists() else []
    for case in asked:
        busy = os.getloadavg()[0]
        found = compared(case, arguments.device, arguments.law_ai, arguments.rounds)
        print("\n".join(table(found).splitlines()[2:]), flush=True)
        rows = [row for row in rows if row["case"] != case.name] + [{**row, "load before": busy} for row in found]
        # After each: what was measured is not lost with what comes later.
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
