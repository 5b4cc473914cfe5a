"""The runs that the state machine disturbs: their configurations, and the processes of a session."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.foreign_files import fact
from tests.crash.small_disk import SmallDisk
from tests.crash.wall_clock import with_library

PACKAGE = Path(__file__).parent
HANG_SECONDS = 240.0


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """What is trained, and by what."""

    name: str
    kind: str
    """Which makes the updates: `engine` or `trainer`."""
    recipe: str | None
    """The file and class of a recipe; None for a script with `surviving`."""
    micro_batch: int = 8
    interval: int = 4
    """The updates that a kill may cost: save_every_updates."""
    exact: bool = True
    """Whether the bits are those of any microbatch."""

    def command(self, run, limit=None, place=None, **values):
        """Return the module and arguments that train in `run`, which is copied to `place`."""
        if self.recipe is None:
            return ["tests.crash.logging_trainer", str(run), *([f"{limit:g}"] if limit else [])]
        values = {"micro_batch": self.micro_batch, "save_every_updates": self.interval, **values}
        pairs = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
        limits = ["--limit", f"{limit:g}s"] if limit else []
        copies = ["--backup", str(place)] if place else []
        if place and not (run / "plan.json").exists():
            copies += ["--from", str(place)]
        return ["shoestring", "train", str(PACKAGE / self.recipe), "--run", str(run), *pairs, *limits, *copies]


_CONFIGURATIONS = [
    Configuration(name="exact", kind="engine", recipe="logging_recipe.py:Exact"),
    Configuration(name="library", kind="trainer", recipe="logging_trainer.py:Library"),
    Configuration(name="noisy", kind="engine", recipe="logging_recipe.py:Noisy", micro_batch=4, exact=False),
    # `surviving` has no save_every_updates; with an interval of 0 s every update is saved.
    Configuration(name="script", kind="trainer", recipe=None, interval=1),
]
CONFIGURATIONS = {configuration.name: configuration for configuration in _CONFIGURATIONS}


@dataclass
class Session:
    """One session of a run: its command, the faults in it, and what is known of it afterwards."""

    folder: Path
    """Of the files of this session: its log, its output."""
    disk: SmallDisk
    configuration: Configuration
    run: Path
    remaining: int
    """The updates until the end of the run."""
    pace: float = 0.0
    limit: float | None = None
    fresh: bool = False
    """Whether Python is started anew instead of forked from a process that has imported the packages."""
    stderr: str = "file"
    """Or `closed`, or `pipe`, whose reader can end."""
    faults: dict = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    """Of the faults of this session."""
    statuses: set = field(default_factory=lambda: {0})
    refusals: set = field(default_factory=set)
    """The statuses with which the faults may make the command refuse to train, with one clear error."""
    suspended: set = field(default_factory=set)
    """Names of the promises that the faults suspend."""
    variables: dict = field(default_factory=dict)
    """Environment variables of this session."""
    library: Path | None = None
    """What all processes load first (`wall_clock.py`)."""
    place: Path | None = None
    """Of the run's copies, if it is copied."""
    values: dict = field(default_factory=dict)
    """Options and settings besides those of the configuration."""
    other_run: object = None
    """Returns the directory of a finished run with another seed."""
    outside: Path | None = None
    """A folder to which foreign links point."""
    planted: dict = field(default_factory=dict)
    """The facts of the files of somebody else by their paths; they must stay as they are."""
    replaced: list = field(default_factory=list)
    """(path, path of the original or None, facts of what was put there) of files of another run."""
    lost_updates: int = 0
    """The updates that the next session has to repeat."""
    command: list = field(default_factory=list)
    state_before: str = ""
    """The status that state.json had before the session."""
    reached: set = field(default_factory=set)
    """The names of the faults whose condition was really reached."""
    others: list = field(default_factory=list)
    """(name, allowed statuses, process, output) of other commands in the directory at the same time."""
    process: object = None
    is_hanging: bool = False
    damage: str = ""
    """The place of the byte that was changed before the session."""
    damaged_checkpoint: str = ""
    seconds: float = 0.0
    usual_seconds: float = 0.0
    """Of an undisturbed session of the same configuration on this machine."""
    slow_update: int | None = None
    """The update in which an action begins, counted from 1 in this session."""

    @property
    def log(self):
        return self.folder / "log"

    @property
    def errors(self):
        return self.folder / "stderr"

    @property
    def clock(self):
        """The file of the seconds that are added to the wall clock."""
        return self.folder / "clock"

    @property
    def is_refused(self):
        """Whether the command has ended with one of the errors that its faults allow."""
        return self.process.returncode in self.refusals

    def plant(self, paths):
        self.planted.update((str(path), fact(path)) for path in paths)

    def replace(self, source, target):
        """Put a copy of `source` in the place of `target`, until `restore_replaced`."""
        original = None
        if target.exists():
            original = self.folder / f"original-{len(self.replaced)}"
            shutil.move(target, original)
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)
        self.replaced.append((target, original, content(target)))

    def restore_replaced(self):
        """Do what the user does after the session: restore what was replaced, unless the run has written it since."""
        for target, original, before in reversed(self.replaced):
            if content(target) == before:
                (shutil.rmtree if target.is_dir() else os.unlink)(target)
                if original:
                    shutil.move(original, target)

    def start(self, server):
        self.command = self.configuration.command(self.run, self.limit, self.place, **self.values)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log.touch()
        if self.stderr == "pipe":
            os.mkfifo(self.errors)
            self._pipe = os.open(self.errors, os.O_RDONLY | os.O_NONBLOCK)
        self.started = time.monotonic()
        self.process = self.launch(None if self.fresh else server, self.command, "out", self.errors)
        self.server = server

    def launch(self, server, command, output, errors):
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "SOAK_LOG": str(self.log), "SOAK_PACE": str(self.pace),
            "SOAK_FAULTS": json.dumps(self.faults), "XDG_STATE_HOME": str(self.folder.parent / "state"),
            "TMPDIR": str(self.folder.parent / "temporary"), "SHOESTRING_PROBE": "0", **self.variables,
        }  # fmt: skip
        environment = {name: value for name, value in with_library(environment, self.library).items() if value}
        if server:
            is_closed = self.stderr == "closed" and errors == self.errors
            return server.start(command, environment, self.folder / output, None if is_closed else errors)
        arguments = [sys.executable, "-m", *command]
        if self.stderr == "closed" and errors == self.errors:
            arguments = ["/bin/sh", "-c", 'exec "$@" 2>&-', "sh", *arguments]
        # A pipe cannot be opened to append: Python would look for its end.
        files = [
            os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644) for path in (self.folder / output, errors)
        ]
        try:
            return subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=files[0], stderr=files[1], env=environment,
                start_new_session=True,
            )  # fmt: skip
        finally:
            for file in files:
                os.close(file)

    def launch_other(self, name, statuses, command):
        """Start another command in the directory of the run."""
        output = self.folder / f"{name}.stderr"
        self.others.append((name, statuses, self.launch(self.server, command, f"{name}.out", output), output))

    def close_pipe(self):
        if self.stderr == "pipe":
            os.close(self._pipe)
            self.stderr = "broken pipe"

    def read_pipe(self):
        """Empty the pipe, as its reader does."""
        if self.stderr == "pipe":
            with contextlib.suppress(BlockingIOError):
                os.read(self._pipe, 65536)

    def alive(self):
        return self.process.poll() is None

    def entries(self):
        """Return the complete lines of the log."""
        return self.log.read_text().splitlines()

    def seconds_late(self):
        """Return the seconds from the limit to the command's end; a script's limit holds for `surviving`."""
        times = {kind: float(value) for kind, _, value in (entry.partition(" ") for entry in self.entries())
                 if kind in ("begin", "end")}  # fmt: skip
        end = times.get("end", self.started + self.seconds)
        return end - times.get("begin", self.started) - self.limit

    def started_updates(self):
        counts = [len(line.split(",")) for line in self.entries() if line.startswith("samples")]
        return -(-sum(counts) // 8)

    def tree(self):
        """Return the process ids of the session's living processes, the first one first."""
        return [self.process.pid, *children(self.process.pid)] if self.alive() else []

    def send(self, number, *, target="first"):
        """Send a signal to the first process, its newest child if it has one, the group, or all its processes."""
        tree = self.tree()
        chosen = {"first": tree[:1], "child": tree[-1:], "all": tree, "group": [-pid for pid in tree[:1]]}[target]
        for pid in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return bool(chosen)


def content(path):
    """Return the facts of a file, or of all files of a folder."""
    paths = [path, *sorted(path.rglob("*"))] if path.is_dir() else [path]
    return [[str(path), path.read_bytes()] for path in paths if path.is_file()]


def children(pid):
    """Return the ids of all processes that descend from `pid`, parents first."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                parents[int(stat.parent.name)] = int(fields[1])
    descendants, queue = [], [pid]
    while queue:
        parent = queue.pop(0)
        direct = sorted(child for child, of in parents.items() if of == parent)
        descendants += direct
        queue += direct
    return descendants


def processes_with_files(folder):
    """Return the ids of the processes that have a file below `folder` open."""
    ids = set()
    for descriptors in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            if any(str(link.readlink()).startswith(f"{folder}/") for link in descriptors.iterdir()):
                ids.add(int(descriptors.parent.name))
    return ids - {os.getpid()}


def end_processes(ids):
    for pid in ids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def drive(session, server, actions):
    """Run the session to its end, with its `actions`: ((updates, seconds), generator of pauses) of each."""
    session.start(server)
    waiting = [Action(*moment, steps) for moment, steps in actions]
    while session.alive():
        session.read_pipe()
        started_updates = session.started_updates()
        waiting = [action for action in waiting if action.proceed(session.started, started_updates)]
        if time.monotonic() - session.started > HANG_SECONDS:
            session.send(signal.SIGKILL, target="all")
            session.is_hanging = True
        time.sleep(0.005 if waiting else 0.02)
    session.seconds = time.monotonic() - session.started
    for action in waiting:
        action.end()
    while any(process.poll() is None for _, _, process, _ in session.others):
        time.sleep(0.01)
    session.close_pipe()


@dataclass
class Action:
    """The action of a fault in a running session."""

    updates: int
    seconds: float
    """The action begins so long after this number of updates of the session, 0 for the start of its process."""
    steps: Iterator[float]
    due: float | None = None

    def proceed(self, process_started, started_updates):
        """Make the steps that are due; return whether there may be more."""
        now = time.monotonic()
        if self.due is None and started_updates >= self.updates:
            self.due = (now if self.updates else process_started) + self.seconds
        while self.due is not None and now >= self.due:
            pause = next(self.steps, None)
            if pause is None:
                return False
            self.due = now + pause
        return True

    def end(self):
        """Make all further steps without pauses, if the action has begun."""
        if self.due is not None:
            for _ in self.steps:
                pass
