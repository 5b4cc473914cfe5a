"""Kill a run at random instants and look for steps that its logs have twice or lack.

    python -m benchmarks.evidence.log_kills [--kills 10] [--seed 0] [--json OUT]

The command is the real one, `train temporal --log tensorboard --log csv` on a CPU, killed with SIGKILL at random
instants after its first update and continued without `--log`. TensorBoard's event files are read by its own reader, all
files of the folder one after the other and as TensorBoard shows them. Each update must be there once, with the loss of
the run's record. A reader that was open all the time must show the same in the end.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

RESULTS = Path(__file__).parents[1] / "results"
OPTIONS = ("size=tiny", "max_updates=400", "save_every_updates=7")
TAG = "train/loss"


def start(run: Path, *logs: str) -> subprocess.Popen[bytes]:
    settings = [part for option in OPTIONS for part in ("--set", option)]
    names = [part for name in logs for part in ("--log", name)]
    with run.with_suffix(".log").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "shoestring", "train", "temporal", "--run", str(run), *settings, *names],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=output,
        )


def recorded_updates(run: Path) -> int:
    """Return how many lines of the record have an update, those of superseded work included."""
    with suppress(FileNotFoundError):
        return (run / "events.jsonl").read_text().count('"event": "progress"')
    return 0


def kill_at_random(process: subprocess.Popen[bytes], run: Path, draw: random.Random) -> bool:
    """Kill the process some time after it has recorded an update; return whether it was still running."""
    before = recorded_updates(run)
    while process.poll() is None and recorded_updates(run) == before:
        time.sleep(0.02)
    with suppress(subprocess.TimeoutExpired):
        process.wait(draw.uniform(0.0, 2.5))
    process.kill()
    return process.wait() == -signal.SIGKILL


def losses_of_record(run: Path) -> dict[int, float]:
    """Return the loss after each recorded update: the last one counts."""
    losses: dict[int, float] = {}
    for line in (run / "events.jsonl").read_text().splitlines():
        with suppress(ValueError):
            event = json.loads(line)
            if event["event"] == "session":
                losses = {update: loss for update, loss in losses.items() if update <= event["update"]}
            elif event["event"] == "progress":
                losses[event["update"]] = event["loss"]
    return losses


def steps_of_files(folder: Path) -> list[int]:
    """Return the steps of the loss in all event files."""
    return [
        event.step
        for file in sorted(folder.iterdir())
        for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value
        if value.tag == TAG
    ]


def problems(expected: dict[int, float], steps: list[int], name: str) -> list[str]:
    twice = [step for step, count in Counter(steps).items() if count > 1]
    missing, unknown = expected.keys() - set(steps), set(steps) - expected.keys()
    named = {"twice": twice, "missing": missing, "not in the record": unknown}
    return [f"{name}: {kind}: {sorted(steps)[:5]}" for kind, steps in named.items() if steps]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=RESULTS / "log_kills.json")
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        logs = run / "logs" / "tensorboard"
        process, killed_at, open_reader = start(run, "tensorboard", "csv"), [], None
        while len(killed_at) < arguments.kills:
            if not kill_at_random(process, run, draw):
                raise SystemExit(
                    f"the run ended after {len(killed_at)} kills\n{run.with_suffix('.log').read_text()[-2000:]}"
                )
            killed_at.append(recorded_updates(run))
            if logs.is_dir():
                open_reader = open_reader or EventAccumulator(str(logs), size_guidance={"scalars": 0})
                open_reader.Reload()
            process = start(run)
        if process.wait():
            raise SystemExit(run.with_suffix(".log").read_text()[-2000:])
        expected = losses_of_record(run)
        reader = EventAccumulator(str(logs), size_guidance={"scalars": 0})
        messages = problems(expected, steps_of_files(logs), "event files")
        for name, each in (("TensorBoard", reader), ("an open TensorBoard", open_reader)):
            if each is None:
                continue
            each.Reload()
            scalars = each.Scalars(TAG)
            messages += problems(expected, [event.step for event in scalars], name)
            different = [event.step for event in scalars if abs(event.value - expected.get(event.step, 0)) > 1e-6]
            messages += [f"{name}: other losses: {different[:5]}"] if different else []
        with (run / "logs" / "csv" / "metrics.csv").open() as file:
            messages += problems(
                expected, [int(row["update"]) for row in csv.DictReader(file) if row["name"] == TAG], "csv"
            )
        sessions = (run / "events.jsonl").read_text().count('"event": "session"')
        superseded = recorded_updates(run) - len(expected)
    result: dict[str, Any] = {
        "environment": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("shoestring", "torch", "tensorboard")},
        },
        "command": ["train", "temporal", *OPTIONS],
        "seed": arguments.seed,
        "kills": len(killed_at),
        "sessions": sessions,
        "updates": len(expected),
        "superseded": superseded,
        "problems": messages,
    }
    arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    print(
        f"{len(killed_at)} kills, {sessions} sessions, {len(expected)} recorded points, {superseded} superseded: "
        + ("; ".join(messages) or "each is there once")
    )
    raise SystemExit(bool(messages))


if __name__ == "__main__":
    main()
