"""Kill fine-tuning at random instants, continue it, and compare its bits with those of an undisturbed run.

    python -m benchmarks.finetune.kills MODEL [--only lora nf4 ...] [--kills 5] [--seed 0] [--json OUT]

The command is the real one, on a CPU. A SIGKILL comes at a random instant between the start of a process and the moment
when it can hardly have finished, so some come while a run is read and some in an update, an evaluation or a save.
Equal are the SHA-256 digests of all tensors in the weights for use and in the last full checkpoint, and the metrics.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from benchmarks.finetune.conversations import write
from safetensors import safe_open

RESULTS = Path(__file__).parents[1] / "results"
ROWS = 40
COMMON = ("effective_batch=4", "micro_batch=2", "seq_len=384", "answer_tokens=4", "save_every_updates=3")
CASES: dict[str, tuple[str, ...]] = {
    "lora": (),
    "nf4": ("quantization=nf4",),
    "dpo": ("method=dpo",),
    "all weights": ("lora_r=none",),
    "packed": ("packing=yes", "micro_batch=1"),
    "two processes": ("gpus=2",),
}
"""Options by name; the last value of an option counts."""
LIMIT_SECONDS = 3600
"""A command that takes longer hangs."""


def start(model: str, data: Path, options: Sequence[str], threads: int, run: Path) -> subprocess.Popen[bytes]:
    """Start the command that trains or continues; what it prints is added to `run`.log."""
    values = dict(option.split("=", 1) for option in (*COMMON, *options))
    values |= {"model": model, "data": str(data)}
    settings = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
    with run.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "shoestring", "train", "finetune", "--on", "cpu", "--run", str(run), *settings],
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            stdout=log,
            stderr=log,
        )


def finish(process: subprocess.Popen[bytes], run: Path) -> None:
    """Wait until the run is finished. Raises SystemExit with the log if it is not."""
    try:
        status = process.wait(LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise SystemExit(f"{run.name} has not finished within {LIMIT_SECONDS} s\n{_end_of_log(run)}") from None
    if status or json.loads((run / "state.json").read_text())["status"] != "finished":
        raise SystemExit(f"{run.name}: status {status}\n{_end_of_log(run)}")


def _end_of_log(run: Path) -> str:
    return run.with_suffix(".log").read_text()[-3000:]


def undisturbed(process: subprocess.Popen[bytes], run: Path) -> tuple[float, float]:
    """Wait for a run, and return the seconds until its first update begins, and those from then to its end."""
    started = time.monotonic()
    while process.poll() is None and not _has_session(run):
        time.sleep(0.02)
    starting = time.monotonic() - started
    finish(process, run)
    return starting, time.monotonic() - started - starting


def _has_session(run: Path) -> bool:
    with suppress(FileNotFoundError):
        return '"event": "session"' in (run / "events.jsonl").read_text()
    return False


def kill_once(process: subprocess.Popen[bytes], delay: float) -> bool:
    """Kill the process after some seconds, and return whether it was still running."""
    try:
        process.wait(delay)
    except subprocess.TimeoutExpired:
        process.kill()
    return process.wait() == -signal.SIGKILL


def digests(run: Path) -> dict[str, Any]:
    """Return the digest of the tensors of each file that has weights or optimizer states, and the run's metrics."""
    newest = max((run / "checkpoints").glob("update-*"))
    files = [file for folder in (run / "light", newest) for file in sorted(folder.glob("*.safetensors"))]
    by_file = {f"{file.parent.name}/{file.name}": digest(file) for file in files}
    assert {file.parent for file in files} == {run / "light", newest}
    return {**by_file, "metrics": json.loads((run / "state.json").read_text())["metrics"]}


def digest(file: Path) -> str:
    """Return the SHA-256 of the tensors in a file by their names: the order of its metadata is not fixed."""
    total = hashlib.sha256()
    with safe_open(file, framework="pt") as tensors:
        for name in sorted(tensors.keys()):
            tensor = tensors.get_tensor(name).contiguous()
            total.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return total.hexdigest()


def disturbed(
    command: Callable[[Path], subprocess.Popen[bytes]], run: Path, delays: Iterator[float], kills: int
) -> int:
    """Train to the end with at most so many kills, and return their number."""
    made = 0
    while made < kills and kill_once(command(run), next(delays)):
        made += 1
        print(f"  kill {made}: at update {_update(run)}", flush=True)
    finish(command(run), run)
    return made


def run_case(model: str, case: str, kills: int, seed: int, threads: int, folder: Path) -> dict[str, Any]:
    """Train once undisturbed and then with kills, and return the digests of all runs.

    A run that is finished before it was killed often enough is followed by another one.
    """
    data, options, chance = folder / "data", CASES[case], random.Random(seed)
    write(data, ROWS, seed=0, pairs="method=dpo" in options)
    whole = folder / "undisturbed"
    command = partial(start, model, data, options, threads)
    starting, training = undisturbed(command(whole), whole)
    # Some kills come at the start, most within an update or a save, and so many together before the end.
    delays = iter(lambda: chance.uniform(starting / 2, starting + 2 * training / kills), None)
    expected, runs = digests(whole), []
    while (left := kills - sum(run["kills"] for run in runs)) > 0:
        run = folder / f"disturbed-{len(runs)}"
        runs.append({"kills": disturbed(command, run, delays, left), "digests": digests(run)})
    return {
        "case": case,
        "options": (*COMMON, *options),
        "seed": seed,
        "starting_seconds": starting,
        "training_seconds": training,
        "kills": kills,
        "equal": all(run["digests"] == expected for run in runs),
        "undisturbed": expected,
        "disturbed": runs,
    }


def _update(run: Path) -> int:
    """Return the update that a run's events have reached."""
    reached = 0
    with suppress(FileNotFoundError):
        for line in (run / "events.jsonl").read_text().splitlines():
            with suppress(json.JSONDecodeError):  # the last line may be cut by the kill
                reached = max(reached, json.loads(line).get("update") or 0)
    return reached


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=RESULTS / "finetune_kills.json")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for case in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            model = str(Path(arguments.model).resolve())
            rows.append(run_case(model, case, arguments.kills, arguments.seed, arguments.threads, Path(folder)))
        print(f"{case}: {arguments.kills} kills, {'the same bits' if rows[-1]['equal'] else 'OTHER BITS'}", flush=True)
        content = {
            "environment": {
                "python": platform.python_version(),
                "processors": os.cpu_count(),
                **{package: metadata.version(package) for package in ("torch", "transformers", "peft")},
            },
            "rows": rows,
        }
        # Written after each case, so that a later failure does not lose its measurements.
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    if any(not row["equal"] for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
