"""Compare training on two processes: the engine beside DistributedDataParallel by hand, Accelerate and Lightning.

    python -m benchmarks.engine.parallel [--pairs 24] [--json OUT]

Gloo processes of one thread stand for GPUs. Every contender trains the same model with the same effective batch. All
of them are alive during the whole run, and their blocks of updates take turns: while one runs, the others wait for a
message. What is compared are ratios of neighbouring blocks, so that a change of the machine's speed concerns both.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.engine.compare import ENVIRONMENT, RESULTS
from torch.distributed import TCPStore

SHAPE = (6, 1024)
BLOCK, WARM_UP = 5, 5
GOAL = 0.02
"""The median of the engine's slowdown against DistributedDataParallel by hand is at most this."""
CONTENDERS: dict[str, dict[str, Any]] = {
    "DDP by hand": {"loop": "by hand", "ranks": 2},
    "shoestring ddp": {"loop": "shoestring", "ranks": 2, "sharding": "ddp"},
    "shoestring zero1": {"loop": "shoestring", "ranks": 2, "sharding": "zero1"},
    "Accelerate": {"loop": "Accelerate", "ranks": 2},
    "Lightning": {"loop": "Lightning", "ranks": 2},
    "FSDP2 by hand": {"loop": "FSDP2 by hand", "ranks": 2},
    "shoestring zero3": {"loop": "shoestring", "ranks": 2, "sharding": "zero3"},
    "one process": {"loop": "by hand", "ranks": 1},
}
COMPARED = {name: "FSDP2 by hand" if name == "shoestring zero3" else "DDP by hand" for name in CONTENDERS}
"""What each contender is compared with."""


class Contender:
    """The processes of a contender, the first of which measures."""

    def __init__(self, name: str, facts: dict[str, Any], folder: Path) -> None:
        to_parent, from_child = os.pipe()
        to_child, from_parent = os.pipe()
        question = {**facts, "folder": str(folder), "to": from_child, "from": to_child, "shape": SHAPE}
        question |= {"mode": "rounds", "updates": WARM_UP}
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # as torchrun has it
        self._name, self._log = name, folder.with_suffix(".log")
        self._processes = []
        for rank in range(facts["ranks"]):
            ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": facts["ranks"], "LOCAL_WORLD_SIZE": facts["ranks"]}
            address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self._store.port, "GROUP_RANK": 0}
            address |= {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": True}
            variables = {**ranks, **address} if facts["ranks"] > 1 else {}
            with self._log.open("ab") as log:
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "benchmarks.engine.parallel_contenders", json.dumps(question)],
                        stdout=log,
                        stderr=log,
                        pass_fds=(from_child, to_child) if rank == 0 else (),
                        env={**os.environ, **ENVIRONMENT, **{name: str(value) for name, value in variables.items()}},
                    )
                )
        os.close(from_child)
        os.close(to_child)
        self._answers, self._requests = os.fdopen(to_parent), os.fdopen(from_parent, "w")

    def read_answer(self) -> float:
        """Read the seconds of the block that was requested last."""
        line = self._answers.readline()
        if not line:
            raise SystemExit(f"{self._name}: {self._log.read_text()[-3000:]}")
        return float(json.loads(line)[0])

    def seconds_per_update(self) -> float:
        """Run a block of updates."""
        print(BLOCK, file=self._requests, flush=True)
        return self.read_answer() / BLOCK

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._answers.close()
        self._requests.close()


def measure(questions: dict[str, dict[str, Any]], pairs: int, folder: Path) -> dict[str, list[float]]:
    """Return the seconds per update of each contender in each of `pairs` rounds, which begin with another one each."""
    contenders, names = {}, list(questions)
    try:
        for name, facts in questions.items():
            contenders[name] = Contender(name, facts, folder / name.replace(" ", "-"))
            contenders[name].read_answer()  # the warm-up
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for number in range(pairs):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                seconds[name].append(contenders[name].seconds_per_update())
        return seconds
    finally:
        for contender in contenders.values():
            contender.end()


def interval(ratios: list[float], resamples: int = 4000) -> tuple[float, float]:
    """Return the 95% interval of the median, by the bootstrap."""
    generator = random.Random(0)
    medians = sorted(median(generator.choices(ratios, k=len(ratios))) for _ in range(resamples))
    return medians[int(0.025 * resamples)], medians[int(0.975 * resamples)]


def rows(seconds: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Return the row of each contender: medians, and its slowdown against what it is compared with."""
    result = []
    for name, own in seconds.items():
        ratios = {
            other: [a / b - 1 for a, b in zip(own, seconds[other], strict=True)]
            for other in (COMPARED[name], "one process")
            if other in seconds
        }
        result.append(
            {
                "name": name,
                "update_seconds": median(own),
                "compared_with": COMPARED[name],
                "slowdown": median(ratios.get(COMPARED[name], [float("nan")])),
                "slowdown_interval": interval(ratios[COMPARED[name]]) if COMPARED[name] in ratios else None,
                "share_of_one_process": 1 + median(ratios["one process"]) if "one process" in ratios else None,
                "seconds": own,
            }
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare training on two processes.")
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--json", type=Path, default=RESULTS / "parallel.json")
    arguments = parser.parse_args()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        questions = {name: CONTENDERS[name] for name in arguments.only}
        measured = rows(measure(questions, arguments.pairs, Path(folder)))
    for row in measured:
        low, high = row["slowdown_interval"] or (float("nan"), float("nan"))
        share = row["share_of_one_process"]
        print(
            f"{row['name']:18} {row['update_seconds'] * 1e3:7.1f} ms   {row['slowdown']:+.1%} "
            f"({low:+.1%} to {high:+.1%}) against {row['compared_with']}"
            + (f", {share:.0%} of one process" if share else "")
        )
    ours = next((row for row in measured if row["name"] == "shoestring ddp"), None)
    is_reached = ours["slowdown"] <= GOAL if ours else None
    if ours:
        print(f"{'reached' if is_reached else 'NOT REACHED'}: at most {GOAL:.0%} over DDP by hand")
    packages = ("torch", "accelerate", "pytorch-lightning")
    content = {
        "environment": {
            "python": platform.python_version(),
            "processors": os.cpu_count(),
            "load before": load_before,
            "load after": os.getloadavg()[0],
            **{package: metadata.version(package) for package in packages},
        },
        "pairs": arguments.pairs,
        "goal reached": is_reached,
        "rows": measured,
    }
    arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
