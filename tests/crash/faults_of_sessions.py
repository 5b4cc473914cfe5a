"""The table of faults: what happens to a session, when it applies, and what is allowed to follow from it.

A fault prepares the session or the run's files before the start, or acts while the session runs. An action is a
generator that yields the seconds to wait before it continues; when the session ends, it continues at once. A name of a
fault is added to `session.reached` when its condition is really reached.
"""

import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.crash.schedule import newest_checkpoint

SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One kind of fault."""

    name: str
    prepare: Callable | None = None
    """(session, generator): called before the start."""
    act: Callable | None = None
    """(session, generator) -> generator of seconds, started at a random moment of the session."""
    only_training: bool = False
    """Whether the action begins in the training, never in the start of the process."""
    applies: Callable = lambda session: True
    statuses: tuple[int, ...] = ()
    """The exit statuses that it may cause, besides 0."""
    suspends: tuple[str, ...] = ()
    """The promises that it suspends: `on time`, `interval`, `best`, `microbatch`, `stderr`."""


def has_recipe(session):
    return session.configuration.recipe is not None


def can_mount(session):
    return session.disk.is_mounted


def intact_checkpoints(session):
    """Return the number of checkpoints, if all of them are intact."""
    damaged = newest_checkpoint(session.run)[1]
    return 0 if damaged else len(list((session.run / "checkpoints").glob("update-*")))


def of_signal(number):
    return (-number, 128 + number)


# Actions in a running session


def kill(target):
    def act(session, generator):
        if session.send(signal.SIGKILL, target=target):
            session.reached.add(f"SIGKILL of {target}")
        yield 0.0

    return act


def signals(name, target, pauses):
    """Send a signal once, and again after each pause."""

    def act(session, generator):
        number = signal.Signals[name]
        sent = session.send(number, target=target)
        for pause in pauses:
            yield pause * generator.uniform(0.5, 1)
            sent = session.send(number, target=target)
        if sent:
            session.reached.add(signals_name(name, target, pauses))

    return act


def signals_name(name, target, pauses):
    times = "".join(f", again after {pause:g} s" for pause in pauses)
    return f"{name} to {target}{times}"


def stop(session, generator):
    stopped = session.send(signal.SIGSTOP, target="all")
    yield generator.uniform(1, 3)
    if session.send(signal.SIGCONT, target="all") and stopped:
        session.reached.add("stopped processes")


def fill_disk(session, generator):
    session.disk.fill()
    for _ in range(generator.randint(3, 20)):
        yield 0.1
        session.disk.fill_rest()
    if session.alive():
        session.reached.add("full disk")
    session.disk.free()


def make_immutable(session, generator):
    if session.disk.immutable(session.run, True) and session.alive():
        session.reached.add("read-only directory")
    yield generator.uniform(0.3, 2)
    session.disk.immutable(session.run, False)


def remount(session, generator):
    yield generator.uniform(0, 4)
    session.reached.add("read-only disk at the start")
    session.disk.restore()


def train_twice(session, generator):
    # The first session stands still meanwhile, so that it cannot end before the second one tries.
    stopped = session.send(signal.SIGSTOP, target="all")
    session.launch_other("train", {2}, session.command)
    process = session.others[-1][2]
    for _ in range(200):
        yield 0.1
        if process.poll() is not None:
            break
    if session.send(signal.SIGCONT, target="all") and stopped:
        session.reached.add("second process")


def read(verb):
    def act(session, generator):
        session.launch_other(verb, {0, 1, 2}, ["shoestring", verb, str(session.run)])
        process = session.others[-1][2]
        for _ in range(200):
            yield 0.05
            if process.poll() is not None:
                break
        if process.poll() == 0:
            session.reached.add(f"reader: {verb}")

    return act


def close_pipe(session, generator):
    session.close_pipe()
    if session.alive():
        session.reached.add("broken pipe as stderr")
    yield 0.0


# Preparations before a session


def set_limit(session, generator):
    session.limit = round(generator.uniform(4.5, 9), 1)
    session.pace = 0.1


def jump_clock(session, generator):
    seconds = generator.choice([-3600.0, -5.0, 5.0, 3600.0, 1e6])
    session.faults["clock"] = {"update": generator.randrange(max(1, session.remaining)), "seconds": seconds}


def exhaust_memory(session, generator):
    session.faults["memory"] = {
        "error": generator.choice(["torch.OutOfMemoryError", "MemoryError"]),
        "update": generator.randrange(max(1, session.remaining)),
        "above": generator.choice([None, None, 4, 2]),
    }


def close_stderr(session, generator):
    session.stderr, session.fresh = "closed", True
    session.reached.add("closed stderr")


def open_pipe(session, generator):
    session.stderr = "pipe"


def flip_byte(path, generator):
    content = bytearray(path.read_bytes())
    place = generator.randrange(len(content))
    content[place] ^= 1 << generator.randrange(8)
    path.write_bytes(content)
    return f"{path.parent.name}/{path.name} byte {place}"


def damage_newest(session, generator):
    newest = max((session.run / "checkpoints").glob("update-*"))
    files = sorted(path for path in newest.iterdir() if path.stat().st_size)
    session.damaged_checkpoint = newest.name
    session.damage = flip_byte(generator.choice(files), generator)
    session.reached.add("damaged newest checkpoint")


def damage_best(session, generator):
    session.damage = flip_byte(session.run / "best" / "model.safetensors", generator)
    session.reached.add("damaged best weights")


def move_run(session, generator):
    target = session.run.with_name(f"{session.run.name}-moved")
    shutil.move(session.run, target)
    session.run = target
    session.reached.add("moved directory")


def remount_read_only(session, generator):
    session.disk.read_only()


def fill_before(session, generator):
    session.disk.fill()


def reports_memory_error(session):
    return "memory" in session.entries()


SIGNAL_FAULTS = [
    Fault(
        name=signals_name(name, target, pauses),
        act=signals(name, target, pauses),
        statuses=of_signal(signal.Signals[name]),
    )
    for name in SIGNALS
    for target, pauses in [("first", ()), ("group", ()), ("first", (0.05,)), ("group", (3.0,))]
]

FAULTS = [
    *SIGNAL_FAULTS,
    Fault(name="SIGKILL of first", act=kill("first"), statuses=of_signal(signal.SIGKILL)),
    Fault(name="SIGKILL of child", act=kill("child"), statuses=(1, *of_signal(signal.SIGKILL))),
    Fault(name="session limit", prepare=set_limit),
    Fault(name="stopped processes", act=stop, suspends=("on time",)),
    Fault(name="second process", act=train_twice, only_training=True, suspends=("on time",)),
    Fault(name="reader: report", act=read("report")),
    Fault(name="reader: evaluate", act=read("evaluate"), applies=has_recipe),
    Fault(
        name="full disk", act=fill_disk, applies=can_mount, only_training=True, statuses=(1,),
        suspends=("interval", "best"),
    ),
    Fault(
        name="full disk at the start", prepare=fill_before, applies=can_mount, statuses=(1, 2),
        act=lambda session, generator: free_later(session, generator), suspends=("interval", "best"),
    ),
    Fault(
        name="read-only directory", act=make_immutable, applies=can_mount, only_training=True, statuses=(1,),
        suspends=("interval", "best"),
    ),
    Fault(
        name="read-only disk at the start", prepare=remount_read_only, act=remount, applies=can_mount,
        statuses=(1, 2), suspends=("interval", "best"),
    ),
    Fault(
        name="out of memory", prepare=exhaust_memory, suspends=("microbatch",),
        applies=lambda session: has_recipe(session) and session.configuration.exact,
    ),
    Fault(name="clock jump", prepare=jump_clock),
    Fault(
        name="damaged newest checkpoint", prepare=damage_newest,
        applies=lambda session: intact_checkpoints(session) > 1,
    ),
    Fault(
        name="damaged best weights", prepare=damage_best, suspends=("best",),
        applies=lambda session: (session.run / "best" / "model.safetensors").exists(),
    ),
    Fault(name="closed stderr", prepare=close_stderr, suspends=("stderr",)),
    Fault(name="broken pipe as stderr", prepare=open_pipe, act=close_pipe, suspends=("stderr",)),
    Fault(name="moved directory", prepare=move_run, applies=lambda session: (session.run / "plan.json").exists()),
]  # fmt: skip

REACHED_IN_LOG = {
    "session limit": lambda session: state_of(session).get("reason", "").startswith("session limit"),
    "clock jump": lambda session: "clock" in session.entries(),
    "out of memory": reports_memory_error,
}
"""Conditions that are read from the log and the state when the session has ended."""


def free_later(session, generator):
    yield generator.uniform(0, 4)
    session.reached.add("full disk at the start")
    session.disk.free()


def state_of(session):
    try:
        return json.loads(Path(session.run / "state.json").read_text())
    except (OSError, ValueError):
        return {}
