"""The table of faults: what happens to a session, when it applies, and what is allowed to follow from it."""

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass

from tests.crash import actions_of_faults as actions
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
    moment: str = "any"
    """When the action begins: at `any` time, in the `training`, at the `start`, or in the session's `slow` update."""
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


SIGNAL_FAULTS = [
    Fault(
        name=actions.signals_name(name, target, pauses),
        prepare=actions.slow_down if pauses else None,
        act=actions.signals(name, target, pauses),
        moment="slow" if pauses else "any",
        statuses=of_signal(signal.Signals[name]),
    )
    for name in SIGNALS
    for target, pauses in [("first", ()), ("group", ()), ("first", (0.05,)), ("group", (3.0,))]
]

FAULTS = [
    *SIGNAL_FAULTS,
    Fault(name="SIGKILL of first", act=actions.kill("first"), statuses=of_signal(signal.SIGKILL)),
    Fault(name="SIGKILL of child", act=actions.kill("child"), statuses=(1, *of_signal(signal.SIGKILL))),
    Fault(name="session limit", prepare=actions.set_limit),
    Fault(name="stopped processes", act=actions.stop, suspends=("on time",)),
    Fault(name="second process", act=actions.train_twice, moment="training", suspends=("on time",)),
    Fault(name="reader: report", act=actions.read("report")),
    Fault(name="reader: evaluate", act=actions.read("evaluate"), applies=has_recipe),
    Fault(
        name="full disk", act=actions.fill_disk, applies=can_mount, moment="training", statuses=(1,),
        suspends=("interval", "best"),
    ),
    Fault(
        name="full disk at the start", prepare=actions.fill_before, applies=can_mount, statuses=(1, 2), moment="start",
        act=actions.free_later, suspends=("interval", "best"),
    ),
    Fault(
        name="read-only directory", act=actions.make_immutable, applies=can_mount, moment="training", statuses=(1, 2),
        suspends=("interval", "best"),
    ),
    Fault(
        name="read-only disk at the start", prepare=actions.remount_read_only, act=actions.remount, applies=can_mount,
        moment="start", statuses=(1, 2), suspends=("interval", "best"),
    ),
    Fault(
        name="out of memory", prepare=actions.exhaust_memory, suspends=("microbatch",),
        applies=lambda session: has_recipe(session) and session.configuration.exact,
    ),
    Fault(name="clock jump", prepare=actions.jump_clock),
    Fault(
        name="damaged newest checkpoint", prepare=actions.damage_newest,
        applies=lambda session: intact_checkpoints(session) > 1,
    ),
    Fault(
        name="damaged best weights", prepare=actions.damage_best, suspends=("best",),
        applies=lambda session: (session.run / "best" / "model.safetensors").exists(),
    ),
    Fault(name="closed stderr", prepare=actions.close_stderr, suspends=("stderr",)),
    Fault(name="broken pipe as stderr", prepare=actions.open_pipe, act=actions.close_pipe, suspends=("stderr",)),
    Fault(
        name="moved directory", prepare=actions.move_run,
        applies=lambda session: (session.run / "plan.json").exists(),
    ),
]  # fmt: skip

REACHED = {
    "session limit": lambda session: state_of(session).get("reason", "").startswith("session limit"),
    "clock jump": lambda session: "clock" in session.entries(),
    "out of memory": lambda session: "memory" in session.entries(),
}
"""Conditions that are read from the log and the state when the session has ended."""


def state_of(session):
    try:
        return json.loads((session.run / "state.json").read_text())
    except (OSError, ValueError):
        return {}


def choose(session, generator, deck):
    """Return the next fault of the shuffled table that applies, and sometimes another one."""
    applicable = [fault for fault in deck if fault.applies(session)]
    if not applicable:
        return []
    main, *others = applicable
    others = [fault for fault in others if not (fault.prepare and main.prepare) and not (fault.act and main.act)]
    chosen = [main, *generator.sample(others, k=bool(others) and generator.random() < 0.5)]
    return sorted(chosen, key=lambda fault: fault.act is not None)


def moment(fault, session, generator):
    """Return the number of updates of the session and the seconds after which the fault's action begins."""
    if fault.moment == "start":
        return 0, 0.0
    if fault.moment == "slow":
        return session.slow_update, generator.uniform(0, 0.5)
    if fault.moment == "any" and generator.random() < 0.25:
        return 0, generator.uniform(0, session.usual_seconds + 2 * session.fresh)
    return generator.randint(1, max(1, session.remaining)), generator.uniform(0, 0.03)
