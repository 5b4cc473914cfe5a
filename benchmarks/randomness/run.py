"""Whether runs with augmented samples are reproducible and exact at resume, for several libraries of augmentation.

python benchmarks/randomness/run.py --json OUT

Each library's recipe is trained five times with the same seed, each time in processes of its own: twice without an
interruption, once with worker processes, and once each without and with them stopped and continued. The final weights
are compared bit for bit.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
import traceback
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import augmented
import safetensors
import torch

from shoestring.recipe.finding import choose
from shoestring.training import loop
from shoestring.training.engine.parallel.ranks import Ranks
from shoestring.training.request import SessionRequest
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.stored import StoredPlan
from shoestring.training.session.deadline import Deadline
from shoestring.training.session.signals import StopSignals
from shoestring.training.session.stop import Stop

STOP_AT = 7
"""Of the updates."""


def train(run: Path, source: str, *, workers: int, stop_at: int = 0) -> None:
    """Train in a process of its own, without a plan, until update `stop_at` or the end."""
    run.mkdir(exist_ok=True)
    pid = os.fork()
    if pid:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status:
            raise SystemExit(f"{source}: the process ended with status {status}:\n{(run / 'output').read_text()}")
        return
    status = 1
    try:
        output = os.open(run / "output", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        _train(run, source, workers, stop_at)
        status = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        os._exit(status)


def _train(run: Path, source: str, workers: int, stop_at: int) -> None:
    loaded, settings = choose(augmented.Augmented(augmented.Options(source=source)), {"workers": workers})
    if stop_at:
        augmented.stop_at = stop_at
    directory = RunDirectory(run)
    StoredPlan(recipe=loaded.name).write(directory.plan_file)
    with directory.locked(), StopSignals() as signals:
        request = SessionRequest(
            loaded=loaded,
            settings=settings.replace(micro_batch=6, precision="fp32"),
            run=directory,
            target="local",
            device=torch.device("cpu"),
            stop=Stop(deadline=Deadline(None), signals=signals),
            allow_inexact=False,
            ranks=Ranks.join(),
        )
        loop.train(request)


def notes(run: Path) -> dict[int, list[str]]:
    """Return the notes of each session by its number."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    by_session: dict[int, list[str]] = {}
    for event in events:
        if event["event"] in ("note", "unseeded"):
            by_session.setdefault(event["session"], []).append(event["message"])
    return by_session


def weights(run: Path) -> str:
    """Return a digest of the newest checkpoint's tensors, which are those of the end of the run."""
    newest = max((run / "checkpoints").glob("update-*"))
    with safetensors.safe_open(newest / "model.safetensors", framework="np") as file:
        tensors = {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
    return hashlib.sha256(b"".join(tensors[name] for name in sorted(tensors))).hexdigest()


def compare(source: str, folder: Path) -> dict:
    runs = {name: folder / name for name in ("first", "second", "resumed", "workers", "resumed with workers")}
    train(runs["first"], source, workers=0)
    train(runs["second"], source, workers=0)
    train(runs["workers"], source, workers=2)
    for name, workers in (("resumed", 0), ("resumed with workers", 2)):
        train(runs[name], source, workers=workers, stop_at=STOP_AT)
        state = json.loads((runs[name] / "state.json").read_text())
        assert state["status"] == "paused" and state["update"] == STOP_AT, state
        train(runs[name], source, workers=workers)
    values = {name: weights(run) for name, run in runs.items()}
    notes_of_sessions = notes(runs["resumed"])
    return {
        "source": source,
        "version": library_version(source),
        "equal_runs": values["first"] == values["second"],
        "equal_resumed": values["first"] == values["resumed"],
        "equal_with_workers": values["first"] == values["workers"],
        "equal_resumed_with_workers": values["first"] == values["resumed with workers"],
        "notes": notes_of_sessions.get(1, []),
        "notes_at_resume": notes_of_sessions.get(2, []),
    }


def library_version(source: str) -> str:
    try:
        return version(source)
    except PackageNotFoundError:
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--before", type=Path, help="results of an earlier version, to store beside these")
    parser.add_argument("sources", nargs="*", default=list(augmented.SOURCES))
    arguments = parser.parse_args()
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # it would ask for its newest version
    rows = []
    for source in arguments.sources:
        with tempfile.TemporaryDirectory() as folder:
            started_at = time.monotonic()
            rows.append(compare(source, Path(folder)))
            print(json.dumps(rows[-1]), f"{time.monotonic() - started_at:.0f} s", flush=True)
    if arguments.json:
        before = json.loads(arguments.before.read_text())["rows"] if arguments.before else []
        arguments.json.write_text(json.dumps({"rows": rows, "before": before}, indent=1) + "\n")


if __name__ == "__main__":
    main()
