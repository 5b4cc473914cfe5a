"""Chains of sessions on a loopback Kaggle that fails in every known way, with a laptop that is killed: what becomes of
them, counted.

    python benchmarks/kaggle/chains.py --chains 300 --json benchmarks/results/kaggle-chains.json
    python benchmarks/kaggle/chains.py --training 20 --json benchmarks/results/kaggle-training.json

`--chains` train a payload without torch (`payload.py`) by `run_chain` in a process (`laptop.py`) that is killed by
SIGKILL at random instants and started again. `--training` runs `shoestring kaggle start` on temporal, with its real
sessions, which are given too little time for the whole run: the limit is chosen after one unbroken run on this machine.
Each chain has a Kaggle, faults and kills of its own, all decided by its seed. A chain must finish with the bits of an
unbroken run, or end in one clear error. The file is written after every chain, and chains that are in it
are not run again.
"""

import argparse
import json
import math
import os
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.kaggle.demo import ON, SETUP_SECONDS, seconds_of, weights  # noqa: E402
from benchmarks.kaggle.payload import advance, digest_of  # noqa: E402
from tests.loopback_kaggle import Faults, Loopback  # noqa: E402

LAPTOP = Path(__file__).with_name("laptop.py")
GIVE_UP_SECONDS, GIVE_UP_TRAINING_SECONDS = 240.0, 1200.0
TRAINING_OPTIONS = ("size=tiny", "epochs=400", "patience=400", "save_every_updates=20")
SHARE_OF_TRAINING = 0.25
"""The part of the real training for which a session has time."""
_ANSWERS = ("error_before", "error_after", "throttled", "token_expired")
_HANGS = ("hang", "hang_after")
_FILES = ("error_page", "file_error", "truncated", "cut_list")
_SESSIONS = ("killed_early", "output_lost", "damaged", "timeout_ignored")
_STATUSES = ("status_lags", "status_runs_on", "status_lies")


def conditions(seed: int) -> dict:
    """Return the settings, the faults and the kills of a chain."""
    rng = random.Random(seed)
    faults = {name: rng.choice((0.0, 0.02, 0.06)) for name in _ANSWERS}
    faults |= {name: rng.choice((0.0, 0.0, 0.02)) for name in _HANGS}
    faults |= {name: rng.choice((0.0, 0.1, 0.3)) for name in _FILES}
    faults |= {name: rng.choice((0.0, 0.0, 0.1, 0.25)) for name in _SESSIONS}
    faults |= {name: rng.choice((0.0, 0.3, 1.0)) for name in _STATUSES}
    return {
        "faults": Faults(**faults),
        "mounts": rng.choice(("flat", "nested")),
        "keep_outputs": rng.choice(("success", "always", "random")),
        "clock_offset_seconds": rng.choice((0.0, 0.0, 3600.0, -3600.0)),
        "has_little_quota": rng.random() < 0.25,
        "others": rng.choice((0, 0, 1, 2)),
        "kills": [rng.uniform(0.2, 4.0) for _ in range(rng.randrange(5))],
    }


def occupy(loopback: Loopback, count: int) -> None:
    """Let other sessions of the account hold places for a while."""
    for number in range(count):
        text = f"import time\ntime.sleep({2 + number})\n"
        loopback.kernels.push({"slug": f"me/other-{number}", "text": text, "enableGpu": True})


def run_laptop(
    command: list[str], loopback: Loopback, folder: Path, kills: list[float], give_up: float
) -> tuple[int | None, str]:
    """Run a command until it ends by itself, killing it after each of the times; None if it never does."""
    end, output = time.monotonic() + give_up, ""
    environment = {**os.environ, **loopback.environment, "XDG_STATE_HOME": str(folder / "state"), "COLUMNS": "200"}
    for seconds in [*kills, None]:
        with (folder / "laptop.txt").open("ab") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
            try:
                process.wait(seconds if seconds is not None else max(1.0, end - time.monotonic()))
                break
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                if seconds is None:
                    return None, output
    output = (folder / "laptop.txt").read_text(errors="replace")
    return process.returncode, output


def find_token(loopback: Loopback, folder: Path) -> list[str]:
    """Return the places where the token is written."""
    token = loopback.settings.token.encode()
    places = [
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and token in path.read_bytes()
    ]
    bodies = json.dumps([version.body for kernel in loopback.kernels.kernels.values() for version in kernel.versions])
    return [*places, *(["a kernel"] if token.decode() in bodies else [])]


def run_chain_with_faults(seed: int, folder: Path, *, training: "Reference | None" = None) -> dict:
    """Run one chain and return what became of it."""
    given = conditions(seed)
    plan = {"seed": seed, "updates": 100, "update_seconds": 0.03, "start_seconds": 0.1, "limit_seconds": 2.5}
    plan |= {"every_seconds": 0.1, "timeout_seconds": 4.0}
    limit = training.limit_seconds if training else plan["limit_seconds"]
    kills = [seconds * (limit / plan["limit_seconds"] if training else 1) for seconds in given["kills"]]
    loopback = Loopback(
        folder / "kaggle",
        seed=seed,
        faults=given["faults"],
        token=f"KGAT_{random.Random(seed).getrandbits(128):032x}",
        session_seconds=limit + (20.0 if training else 2.0),
        quota_seconds=3.0 * limit if given["has_little_quota"] else 1e6,
        refresh_seconds=5.0 * limit if given["has_little_quota"] else 1e7,
        keep_outputs=given["keep_outputs"],
        mounts=given["mounts"],
        clock_offset_seconds=given["clock_offset_seconds"],
        hang_seconds=600.0,
        quota_tolerance_seconds=1.3,  # a limit is in whole seconds, and is rounded up
    )
    run = folder / "run"
    started = time.monotonic()
    with loopback:
        loopback.add_dataset("me/rows", {"rows.csv": b"a,b\n"})
        occupy(loopback, given["others"])
        if training:
            options = [argument for pair in TRAINING_OPTIONS for argument in ("--set", pair)]
            command = [sys.executable, "-m", "shoestring", "kaggle", "start", "temporal", "--run", str(run)]
            command += [*options, "--allow-cpu", "--limit", f"{limit}s", "--every", "0.5s"]
        else:
            (folder / "plan.json").write_text(json.dumps(plan))
            command = [sys.executable, str(LAPTOP), str(run), str(folder / "plan.json")]
        give_up = GIVE_UP_TRAINING_SECONDS if training else GIVE_UP_SECONDS
        status, output = run_laptop(command, loopback, folder, kills, give_up)
        counts = loopback.counts()
        running = [
            session.kernel
            for session in loopback.kernels.running()
            if "/other-" not in session.kernel and session.end_reason != "deleted"  # it is being killed
        ]
        tokens = find_token(loopback, folder)
    if status == 0:
        outcome = "finished" if has_right_bits(run, plan, training) else "wrong bits"
    else:
        outcome = "hung" if status is None else "error"
    chain = {}
    if (run / "kaggle" / "chain.json").exists():
        chain = json.loads((run / "kaggle" / "chain.json").read_text())
    sessions = chain.get("sessions", [])
    return {
        "seed": seed,
        "outcome": outcome,
        "error": error_of(output) if outcome != "finished" else "",
        "seconds": round(time.monotonic() - started, 1),
        "kills": len(kills),
        "sessions": len(sessions),
        "sessions_wasted": sum(not session["has_progress"] for session in sessions),
        "ended": dict(Counter(session["outcome"] or session["status"] for session in sessions)),
        "doubled": counts["doubled"],
        "quota_exceeded": counts["quota_exceeded"],
        "left_running": len(running),
        "token_in": tokens,
        "injected": dict(loopback.dice.injected),
        "faults": {name: value for name, value in asdict(given["faults"]).items() if value},
    }


def has_right_bits(run: Path, plan: dict, training: "Reference | None") -> bool:
    """Return whether the run that was fetched ended as an unbroken one."""
    if training is not None:
        return weights(run) == training.weights
    value = digest_of("start", plan["seed"])
    for update in range(plan["updates"]):
        value = advance(value, update + 1)
    state = json.loads((run / "state.json").read_text())
    return state == {"status": "finished", "update": plan["updates"], "value": value}


def error_of(output: str) -> str:
    """Return the last error message of the output."""
    lines = output.splitlines()
    starts = [number for number, line in enumerate(lines) if re.match(r"error: |failed: |Traceback", line)]
    return "\n".join(lines[starts[-1] :][:12]) if starts else "\n".join(lines[-3:])


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One unbroken run."""

    weights: dict[str, bytes]
    limit_seconds: float
    """Of the sessions of the runs that are compared with it."""


def train_reference(folder: Path, at_once: int) -> Reference:
    """Train without interruption. Sessions that run at the same time take longer, at most so many times."""
    options = [argument for pair in TRAINING_OPTIONS for argument in ("--set", pair)]
    run = folder / "reference"
    command = [sys.executable, "-m", "shoestring", "train", "temporal", "--run", str(run), "--on", ON, *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, capture_output=True, cwd=folder, env=environment)
    start, seconds = seconds_of(run)
    slowdown = max(1.0, at_once / (os.cpu_count() or 1))
    limit = math.ceil(slowdown * (SETUP_SECONDS + 1.5 * start + SHARE_OF_TRAINING * seconds))
    return Reference(weights=weights(run), limit_seconds=float(limit))


def summary(rows: list[dict]) -> dict:
    """Return the counts of all chains."""
    names = ("sessions", "sessions_wasted", "kills", "doubled", "quota_exceeded", "left_running")
    injected: Counter[str] = Counter()
    for row in rows:
        injected.update(row["injected"])
    return {
        "chains": len(rows),
        "finished_in_one_session": sum(row["outcome"] == "finished" and row["sessions"] == 1 for row in rows),
        "outcomes": dict(Counter(row["outcome"] for row in rows)),
        **{name: sum(row[name] for row in rows) for name in names},
        "token_found": sum(bool(row["token_in"]) for row in rows),
        "injected": dict(sorted(injected.items())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=0, help="chains of the payload without torch")
    parser.add_argument("--training", type=int, default=0, help="chains of real training")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=3, help="chains that run at the same time")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--keep", type=Path, help="a folder for all files of chains that did not finish")
    arguments = parser.parse_args()
    rows: list[dict] = []
    if arguments.json.exists():
        rows = json.loads(arguments.json.read_text())["rows"]
    seeds = range(arguments.first_seed, arguments.first_seed + (arguments.training or arguments.chains))
    pending = [seed for seed in seeds if seed not in {row["seed"] for row in rows}]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kaggle-chains-") as name, ThreadPoolExecutor(arguments.at_once) as threads:
        training = train_reference(Path(name), arguments.at_once) if arguments.training else None

        def one(seed: int) -> dict:
            folder = Path(name) / f"chain-{seed:04d}"
            folder.mkdir()
            row = run_chain_with_faults(seed, folder, training=training)
            if arguments.keep and row["outcome"] != "finished":
                shutil.copytree(folder, arguments.keep / folder.name, dirs_exist_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            return row

        for count, row in enumerate(threads.map(one, pending), 1):
            rows.append(row)
            facts = {"machine": platform.platform(), "date": time.strftime("%Y-%m-%d"), **summary(rows)}
            if training:
                facts |= {"options": TRAINING_OPTIONS, "limit_seconds": training.limit_seconds}
            arguments.json.write_text(
                json.dumps({**facts, "rows": sorted(rows, key=lambda row: row["seed"])}, indent=1)
            )
            left = (time.monotonic() - started) / count * (len(pending) - count)
            outcomes = ", ".join(f"{value} {key}" for key, value in facts["outcomes"].items())
            print(f"\r{count}/{len(pending)} chains: {outcomes}; {left / 60:.1f} min left ", end="", file=sys.stderr)
    print(file=sys.stderr)
    print(json.dumps(summary(rows), indent=1))


if __name__ == "__main__":
    main()
