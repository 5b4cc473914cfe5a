"""Two runs on a loopback Kaggle, interrupted by the limits of sessions, against the same runs without interruption.

    make demo-kaggle                                              # prints the transcript
    python benchmarks/kaggle/demo.py --write docs/guides/kaggle_demo.md  # also writes the page of the docs

Each run is trained once by `shoestring train`, then by `shoestring kaggle start` through the unpatched client: its
first session is killed by the platform, without a warning and earlier than promised, and the next ones end by
Shoestring's own limit. The exit status is 0 if both interruptions have happened and `light/` and `best/` of each pair
are equal to the bit.
"""

import argparse
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.loopback_kaggle import Loopback  # noqa: E402

EVERY = "0.5s"
ON = "kaggle-t4x2"
SETUP_SECONDS = 10.0
"""What a session needs beside the start of training: the wheel is installed, and the output is left."""
SHARE_OF_TRAINING = 0.3
"""The part of the training for which a session has time, so that the rest of the first one takes at least two."""
PAGE_HEAD = f"""\
# Two runs on Kaggle, interrupted by the limits of their sessions
`make demo-kaggle` prints what follows; its exit status is 0 only if the bits are equal. Kaggle is a loopback on one machine
without a GPU: the official client, unpatched, talks to it, and it runs what is pushed in processes that it ends as Kaggle
does (`tests/loopback_kaggle`). Sessions last about a minute in place of twelve hours, and the command asks every {EVERY} in
place of every minute. Lines that begin with `#` explain. Of the unbroken runs, the lines about updates and epochs are left
out.

The first session of each run is killed by the platform, earlier than promised, and its output is kept as it lay: the next
session verifies it and continues from its newest intact checkpoint. The second one ends by Shoestring's own limit, saved:
`paused`. The limits are chosen after the unbroken run, so that they interrupt the training on any machine.
"""  # noqa: E501


@dataclass(frozen=True, kw_only=True)
class Example:
    recipe: str
    options: tuple[str, ...]
    kill_at: int
    """The platform kills the first session when it has a checkpoint of this update, or a later one."""


EXAMPLES = (
    Example(
        recipe="temporal",
        options=("size=tiny", "epochs=300", "patience=300", "gpus=2", "save_every_updates=30"),
        kill_at=120,
    ),
    Example(recipe="finetune", options=("size=tiny", "epochs=12", "save_every_updates=6"), kill_at=18),
)


class Transcript:
    """What a user types and sees, printed and kept."""

    def __init__(self, folder: Path) -> None:
        self.lines: list[str] = []
        self._folder = folder

    def add(self, line: str) -> None:
        line = line.replace(f"{self._folder}/", "").rstrip()
        self.lines.append(line)
        print(line, flush=True)

    def run(self, command: str, environment: dict[str, str], *, is_shown: Callable[[str], bool] = bool) -> int:
        """Run a command, add it with the lines of its output that are shown, and return its exit status."""
        self.add(f"$ {command}")
        process = subprocess.Popen(
            [sys.executable, "-m", *shlex.split(command)],
            cwd=self._folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        for line in process.stdout:
            if is_shown(line.strip()):
                self.add(line)
        return process.wait()


def weights(run: Path) -> dict[str, bytes]:
    """Return the files of `light/` and `best/`, with their manifests, by their path."""
    files = [path for name in ("light", "best") for path in sorted((run / name).rglob("*")) if path.is_file()]
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in files}


def seconds_of(run: Path) -> tuple[float, float]:
    """Return the seconds that an unbroken run took to start, and those in which it trained."""
    for line in (run / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "session":
            start = event["startup_seconds"]
            return start, json.loads((run / "ledger.json").read_text())["total"]["seconds"] - start
    raise ValueError(f"{run} has no session")


def newest_update(checkpoints: Path) -> int:
    names = [path.name for path in checkpoints.iterdir()] if checkpoints.is_dir() else []
    return max((int(name[7:]) for name in names if re.fullmatch(r"update-[0-9]{8}", name)), default=0)


def end_first_session(
    loopback: Loopback, example: Example, add: Callable[[str], None], is_over: threading.Event
) -> None:
    """Let the platform's limit be reached as soon as the first session has left some checkpoints."""
    while not is_over.wait(0.02):
        machine = loopback.kernels.sessions[0].machine if loopback.kernels.sessions else None
        if machine and newest_update(machine.working / "run" / "checkpoints") >= example.kill_at:
            lived = time.monotonic() - machine.started
            promised, machine.limit_seconds = machine.limit_seconds, 0.0
            add(f"# Kaggle kills the session (SIGKILL) after {lived:.0f} s of the {promised:.0f} s that were promised.")
            return


def train_on_loopback(example: Example, folder: Path, transcript: Transcript) -> list[str]:
    """Train without and with interruptions, and return what is wrong."""
    recipe, options = example.recipe, " ".join(f"--set {option}" for option in example.options)
    plain = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(folder / "state"), "COLUMNS": "100"}
    transcript.add(f"# One unbroken run of {recipe} on this machine, to compare with.")
    is_end = re.compile(r"session |finished|error").match
    command = f"shoestring train {recipe} --run runs/{recipe}-unbroken --on {ON} --allow-cpu {options}"
    if transcript.run(command, plain, is_shown=lambda line: bool(is_end(line))):
        return [f"{recipe}: the unbroken run failed"]
    unbroken, run = folder / "runs" / f"{recipe}-unbroken", folder / "runs" / recipe
    start, training = seconds_of(unbroken)
    limit = math.ceil(SETUP_SECONDS + 1.5 * start + SHARE_OF_TRAINING * training)
    transcript.add("")
    transcript.add("# The same on Kaggle.")
    # Kaggle keeps what a killed session has left, as it lay there.
    with Loopback(folder / f"kaggle-{recipe}", session_seconds=limit + 60.0, keep_outputs="always") as loopback:
        is_over = threading.Event()
        thread = threading.Thread(target=end_first_session, args=(loopback, example, transcript.add, is_over))
        thread.start()
        session = f"--allow-cpu {options} --limit {limit}s --every {EVERY}"
        command = f"shoestring kaggle start {recipe} --run runs/{recipe} {session}"
        status = transcript.run(command, {**plain, **loopback.environment})
        is_over.set()
        thread.join()
        counts = loopback.counts()
    transcript.add("")
    problems = [f"shoestring kaggle start ended with exit status {status}"] if status else []
    problems += problems_of_chain(json.loads((run / "kaggle" / "chain.json").read_text()), counts)
    expected = weights(unbroken)
    actual = weights(run) if not status else {}
    differing = [name for name in sorted({*expected, *actual}) if expected.get(name) != actual.get(name)]
    problems += [f"{name} differs from that of the unbroken run" for name in differing]
    for name in sorted(expected.keys() - set(differing)):
        transcript.add(f"# {name} has the bits of the unbroken run.")
    transcript.add("")
    return [f"{recipe}: {problem}" for problem in problems]


def problems_of_chain(chain: dict[str, Any], counts: dict[str, int]) -> list[str]:
    """Return what did not happen as it was meant to."""
    outcomes = [session["outcome"] for session in chain["sessions"]]
    problems = []
    if outcomes[:1] != ["killed"] or "paused" not in outcomes or outcomes[-1] != "finished":
        problems.append(f"the sessions ended as {', '.join(map(str, outcomes))}, not as killed, paused, finished")
    problems += [f"{counts[name]} {name}" for name in ("doubled", "quota_exceeded", "running") if counts[name]]
    return problems


def page(lines: list[str]) -> str:
    """Return the page of the docs."""
    return f"{PAGE_HEAD}\n```console\n" + "\n".join(lines).strip() + "\n```\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[example.recipe for example in EXAMPLES], help="one of the two runs")
    parser.add_argument("--write", type=Path, help="write the transcript as a page, such as docs/guides/kaggle_demo.md")
    parser.add_argument("--keep", type=Path, help="a folder for all files of the demo")
    arguments = parser.parse_args()
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="demo-kaggle-") as name:
        folder = arguments.keep.absolute() if arguments.keep else Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        transcript = Transcript(folder)
        for example in EXAMPLES:
            if arguments.only in (None, example.recipe):
                problems += train_on_loopback(example, folder, transcript)
    for problem in problems:
        print(f"failed: {problem}", file=sys.stderr)
    if arguments.write and not problems:
        arguments.write.write_text(page(transcript.lines))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
