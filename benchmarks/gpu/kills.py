"""Kill training on a GPU twice, continue it, and compare the bits with a run that was not interrupted.

    python -m benchmarks.gpu.kills [--json OUT] [--dry-run]

All runs of a case are real commands, each supervised as for a user; the kills are SIGKILLs to the whole process group.
The digests of the last checkpoint's weights and optimizer states are compared. `--dry-run` trains on the CPU, and fewer
updates. The exit status is 2 without a GPU, and 1 if bits differ.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine.ranks import digests
from benchmarks.gpu import harness

UPDATES, KILLS = 200, (67, 134)
SHORT_UPDATES, SHORT_KILLS = 24, (8, 16)
SECONDS = 240
"""The limit of one run."""


@dataclass(frozen=True)
class KillCase:
    """What is trained, with its options and settings."""

    name: str
    recipe: str
    values: dict[str, Any]


_TEMPORAL = {"architecture": "lstm", "size": "tiny", "epochs": 200, "patience": 200, "save_every_updates": 20}
CASES = (
    KillCase("LSTM, fp16", "temporal", {**_TEMPORAL, "precision": "fp16"}),
    KillCase(
        "MLP with CUDA graphs",
        "temporal",
        {**_TEMPORAL, "architecture": "mlp", "dropout": 0.0, "compile": "graphs", "checkpointing": "no"},
    ),
    KillCase(
        "sentence classifier, planned settings",
        "legal",
        {"size": "tiny", "epochs": 200, "save_every_updates": 20},
    ),
)


def train(case: KillCase, run: Path, on: str, updates: int, kills: tuple[int, ...]) -> list[int]:
    """Train until the run is finished, killed at these updates, and return the last update seen before each kill."""
    values = {**case.values, "max_updates": updates}
    if on == "cpu":
        values = {name: value for name, value in values.items() if name not in ("precision", "compile")}
    settings = [argument for name, value in values.items() for argument in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "shoestring", "train", case.recipe, "--on", on, "--run", str(run), *settings]
    killed_at = []
    end = time.monotonic() + SECONDS
    for kill in (*kills, None):
        with (run.parent / f"{run.name}.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        while process.poll() is None:
            time.sleep(0.02)
            update = _last_update(run)
            if kill is not None and update >= kill:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                killed_at.append(update)
                break
            if time.monotonic() > end:
                os.killpg(process.pid, signal.SIGKILL)
                raise TimeoutError(f"{case.name}: not finished within {SECONDS} s")
        else:
            if process.returncode:
                raise RuntimeError((run.parent / f"{run.name}.log").read_text(errors="replace")[-800:])
            if kill is not None:
                raise RuntimeError(f"{case.name}: finished before the kill at update {kill}")
    return killed_at


def _last_update(run: Path) -> int:
    try:
        lines = (run / "events.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return 0
    updates = []
    for line in lines:
        try:
            updates.append(int(json.loads(line).get("update") or 0))
        except ValueError:
            continue  # the last line may be incomplete
    return max(updates, default=0)


def measure(case: KillCase, on: str, updates: int, kills: tuple[int, ...], folder: Path) -> dict[str, Any]:
    """Return the row of a case; the two runs train at the same time."""
    started = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        plain = pool.submit(train, case, folder / "plain", on, updates, ())
        killed = pool.submit(train, case, folder / "killed", on, updates, kills)
        row: dict[str, Any] = {"name": case.name, "updates": updates}
        try:
            plain.result()
            row["killed_after_updates"] = killed.result()
        except (RuntimeError, TimeoutError) as error:
            return {**row, "equal": False, "error": str(error)}
    bits = {name: digests(folder / name) for name in ("plain", "killed")}
    plan = json.loads((folder / "plain" / "plan.json").read_text())
    settings = {
        name: plan["plan"]["settings"][name] for name in ("micro_batch", "precision", "optimizer_kernel", "compile")
    }
    seconds = time.monotonic() - started
    return {**row, "equal": bits["plain"] == bits["killed"], "bits": bits, "settings": settings, "seconds": seconds}


def main() -> int:
    arguments = harness.build_parser(__doc__, file="gpu_kills.json", seconds=240).parse_args()
    selection = harness.select_cases(dry_run=arguments.dry_run)
    if selection is None:
        return 2
    _, gpu, kind = selection
    cases, updates, kills = CASES, UPDATES, KILLS
    if arguments.dry_run:
        cases, updates, kills = CASES[:1], SHORT_UPDATES, SHORT_KILLS
    rows = []
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(case, "local" if kind == "cuda" else "cpu", updates, kills, Path(folder)))
        row = rows[-1]
        verdict = "the same bits" if row["equal"] else "OTHER BITS"
        error = f": {row['error']}" if "error" in row else ""
        print(f"{case.name}: {updates} updates, killed after {row.get('killed_after_updates')}: {verdict}{error}")
        harness.write_results(arguments.json, gpu, {"rows": rows})
    return 0 if all(row["equal"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
