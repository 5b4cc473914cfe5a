"""Machines that are lost with their disk, at random times: the run goes on from its copies, to the same bits.

    python -m benchmarks.backup.losses --times 50 --json benchmarks/results/backup-losses.json

A run of `temporal size=tiny` trains with `--backup` to a folder, to an S3 server on this machine (moto, reached by the
real s3fs), to a stand-in for the Hugging Face hub or to a loopback Kaggle (each reached by its own client). Its
processes are killed by SIGKILL at a random time and its directory is deleted; it goes on with `--from`. Progress and
the time left are on standard error.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.loopback_kaggle import Loopback

from shoestring.remote.backup.commits import COMMITS, MAX_COMMIT_BYTES, OBJECTS, names_of, parse_commit
from shoestring.remote.backup.opened import newest_checkpoint
from shoestring.remote.backup.stores import Store, open_store
from shoestring.remote.backup.urls import parse_url
from shoestring.training.run_directory.directory import RunDirectory

INTERVAL = 4
"""Updates between two checkpoints."""
PLACES = ("folder", "s3", "hf", "kaggle")
_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(port=0, verbose=False)
server.start()
print(server._server.server_port, flush=True)  # moto 5.0.0 has no public method for it
sys.stdin.read()
"""
_ARGUMENTS = ["--set", "size=tiny", "--set", f"save_every_updates={INTERVAL}"]
_COMPARED = ("light/model.safetensors", "best/model.safetensors")
_SESSION_SECONDS = 120.0


@contextmanager
def _server(*arguments: str) -> Iterator[str]:
    """Run a server in Python that ends with its input, and yield the line that it prints."""
    process = subprocess.Popen([sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        assert process.stdin and process.stdout
        process.stdin.close()
        process.stdout.close()


@contextmanager
def object_store() -> Iterator[None]:
    """Run an S3 server with the bucket `runs`, which the environment of this process and its children points to."""
    with _server("-c", _SERVER) as port:
        names = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
        os.environ |= names | {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "secret-for-tests"}
        import s3fs

        s3fs.S3FileSystem(skip_instance_cache=True).mkdir("runs")
        yield


@contextmanager
def hub() -> Iterator[None]:
    """Run a stand-in for the Hugging Face hub, which the environment points to. Its client must not be loaded yet."""
    with _server("-m", "tests.remote.backup.loopback_hub") as url:
        os.environ |= {"HF_ENDPOINT": url, "HF_TOKEN": "hf_token_of_the_tests"}
        yield


def train(
    run: Path, *options: str, recipe: str = "temporal", arguments: list[str] = _ARGUMENTS
) -> subprocess.Popen[bytes]:
    """Start a session of the run in a process group of its own."""
    command = [sys.executable, "-m", "shoestring", "train", recipe, "--run", str(run), *arguments, *options]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True, stdin=subprocess.DEVNULL
    )


def finish(process: subprocess.Popen[bytes]) -> str:
    """Wait for a session and return its messages. Raises RuntimeError if it fails."""
    _, messages = process.communicate(timeout=_SESSION_SECONDS)
    if process.returncode:
        raise RuntimeError(messages.decode()[-2000:])
    return messages.decode()


def bits(run: Path) -> dict[str, str]:
    """Return the digests of what a finished run has learnt."""
    newest = newest_checkpoint(RunDirectory(run))
    names = [f"checkpoints/update-{newest:08d}/{name}.safetensors" for name in ("model", "optimizer")]
    files = [run / name for name in (*_COMPARED, *names) if (run / name).exists()]
    return {str(file.relative_to(run)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def lose(process: subprocess.Popen[bytes], run: Path, updates: int) -> int | None:
    """Wait for `updates` more updates in the record, kill all processes, delete the directory.

    Returns the update of the newest checkpoint at that time; None if the session has ended before.
    """
    events = run / "events.jsonl"
    first, deadline = -1, time.monotonic() + _SESSION_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        newest = newest_checkpoint(RunDirectory(run))
        if newest is not None and events.exists():
            first = newest if first < 0 else first
            if newest - first >= updates:
                break
        time.sleep(0.005)
    else:
        process.communicate()
        return None
    time.sleep(random.uniform(0, 0.3))
    newest = newest_checkpoint(RunDirectory(run)) or 0
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    shutil.rmtree(run)
    return newest


def intact(store: Store) -> tuple[int | None, int]:
    """Return the update of the newest commit whose objects all have the right digests, and the objects without one."""
    update, listed = None, set()
    for name in names_of(store.sizes(COMMITS)):
        try:
            commit = parse_commit(b"".join(store.blocks(name.path, MAX_COMMIT_BYTES)), name)
            is_intact = all(
                hashlib.sha256(b"".join(store.blocks(f"{OBJECTS}/{entry.sha256}", entry.bytes))).hexdigest()
                == entry.sha256
                for entry in commit.files.values()
            )
        except (ValueError, OSError):
            continue
        listed |= {entry.sha256 for entry in commit.files.values()}
        update = commit.update if is_intact and update is None else update
    return update, len(store.sizes(OBJECTS).keys() - listed)


def chain(
    url: str, plan: Path, run: Path, random_numbers: random.Random, losses: int, **how: Any
) -> list[dict[str, Any]]:
    """Train a run to its end, and lose at most so many machines on the way. Returns a row for each loss."""
    rows: list[dict[str, Any]] = []
    shutil.copytree(plan, run)
    options = ["--backup", url]
    while True:
        process = train(run, *options, **how)
        if len(rows) >= losses:
            finish(process)
            return rows
        newest = lose(process, run, random_numbers.randrange(INTERVAL, 8 * INTERVAL))
        if newest is None:  # the run has finished before
            return rows
        with closing(open_store(parse_url(url))) as store:
            update, unlisted = intact(store)
        rows.append({"newest": newest, "copied": update, "lost_updates": newest - (update or 0), "half": unlisted > 0})
        if update is None:  # nothing was copied yet: the run starts again
            shutil.copytree(plan, run)
            options = ["--backup", url]
            continue
        options = ["--from", url, "--backup", url]


def measure(times: int, seed: int, folder: Path, write: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Lose so many machines, with copies in each of the places in turn; `write` gets the sums after each run."""
    unbroken, plan = folder / "unbroken", folder / "plan"
    finish(train(unbroken))
    expected = bits(unbroken)
    plan.mkdir()
    shutil.copy(unbroken / "plan.json", plan)
    rows: list[dict[str, Any]] = []
    runs = equal = 0
    most = -(-times // len(PLACES))  # of one run, so that also few losses are in all places
    started = time.monotonic()
    urls = {
        "folder": f"{folder}/copies/",
        "s3": "s3://runs/",
        "hf": "hf://datasets/me/runs/",
        "kaggle": "kaggle://copies-",
    }
    with object_store(), hub(), Loopback(folder / "kaggle", processing_seconds=0.5) as kaggle:
        while len(rows) < times:
            kind = PLACES[runs % len(PLACES)]
            url = f"{urls[kind]}{runs}"
            run = folder / f"run-{runs}"
            random_numbers = random.Random(f"{seed}/{runs}")
            with patch.dict(os.environ, kaggle.environment if kind == "kaggle" else {}):
                new = chain(url, plan, run, random_numbers, min(most, times - len(rows)))
            rows += [{"place": kind, **row} for row in new]
            runs += 1
            equal += bits(run) == expected
            shutil.rmtree(run)
            result = summary(rows, runs, equal)
            write(result)
            left = (time.monotonic() - started) / max(1, len(rows)) * (times - len(rows))
            print(f"{len(rows)} of {times} losses, {equal} of {runs} runs equal, {left:.0f} s left", file=sys.stderr)
    return result


def summary(rows: list[dict[str, Any]], runs: int, equal: int) -> dict[str, Any]:
    """Return the sums of the rows of all losses."""
    return {
        "losses": len(rows),
        "losses_by_place": {kind: sum(row["place"] == kind for row in rows) for kind in PLACES},
        "runs": runs,
        "runs_equal_to_unbroken": equal,
        "half_copies": sum(row["half"] for row in rows),
        "nothing_copied": sum(row["copied"] is None for row in rows),
        "most_updates_lost": max((row["lost_updates"] for row in rows if row["copied"] is not None), default=0),
        "save_interval_updates": INTERVAL,
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    def write(result: dict[str, Any]) -> None:
        if arguments.json:
            arguments.json.write_text(json.dumps(result, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        result = measure(arguments.times, arguments.seed, Path(folder), write)
    print(json.dumps({name: value for name, value in result.items() if name != "rows"}, indent=1))


if __name__ == "__main__":
    main()
