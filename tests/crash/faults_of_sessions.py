"""The table of faults: what happens to a session, when it applies, and what is allowed to follow from it."""

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass

from tests.crash import actions_of_faults as actions
from tests.crash import actions_on_environment as environment
from tests.crash import actions_on_files as files
from tests.crash.schedule import CHECKPOINT, newest_checkpoint

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
    refusals: tuple[int, ...] = ()
    """The exit statuses of one clear error, after which the right command continues."""
    suspends: tuple[str, ...] = ()
    """The promises that it suspends: `on time`, `interval`, `at the end`, `best`, `microbatch`, `stderr`."""


def has_recipe(session):
    return session.configuration.recipe is not None


def depends_on_kernels(session):
    return session.configuration.name == "noisy"


def is_run(session):
    return (session.run / "plan.json").exists()


def has_copy(session):
    """Return whether the run's machine may be lost: there is a complete copy."""
    return session.place is not None and any((session.place / "commits").glob("*.json"))


def has_other_run(session):
    return session.other_run is not None and is_run(session)


def intact_checkpoints(session):
    """Return the number of checkpoints, if all of them are intact."""
    damaged = newest_checkpoint(session.run)[1]
    return 0 if damaged else len(list((session.run / "checkpoints").glob(CHECKPOINT)))


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

PAUSE = SIGNAL_FAULTS[0]
"""Ends a session to which nothing of the area "process" happens."""

PROCESS_FAULTS = [
    *SIGNAL_FAULTS,
    Fault(name="SIGKILL of first", act=actions.kill("first"), statuses=of_signal(signal.SIGKILL)),
    Fault(name="SIGKILL of child", act=actions.kill("child"), statuses=(1, *of_signal(signal.SIGKILL))),
    Fault(name="session limit", prepare=actions.set_limit),
    Fault(name="stopped processes", act=actions.stop, suspends=("on time",)),
    *(
        Fault(
            name=f"suspended beyond the limit: {target}", prepare=actions.set_short_limit,
            act=actions.suspend(target), moment="training", suspends=("on time", "at the end"),
        )
        for target in ("all", "first", "child")
    ),
    Fault(
        name="second process", act=actions.train_twice, moment="training", suspends=("on time",),
        applies=lambda session: session.place is None,
    ),
]  # fmt: skip

READERS = [
    Fault(name="reader: report", act=actions.read("report"), moment="training"),
    Fault(name="reader: evaluate", act=actions.read("evaluate"), applies=has_recipe, moment="training"),
]

DISK_FAULTS = [
    Fault(
        name="full disk", act=actions.fill_disk, moment="training", statuses=(1,), suspends=("interval", "best"),
    ),
    Fault(
        name="full disk at the start", prepare=actions.fill_before, statuses=(1, 2), moment="start",
        act=actions.free_later, suspends=("interval", "best"),
    ),
    Fault(
        name="read-only directory", act=actions.make_immutable, moment="training", statuses=(1, 2),
        suspends=("interval", "best"),
    ),
    Fault(
        name="read-only disk at the start", prepare=actions.remount_read_only, act=actions.remount, moment="start",
        statuses=(1, 2), suspends=("interval", "best"),
    ),
]  # fmt: skip

FILE_FAULTS = [
    Fault(
        name="damaged newest checkpoint", prepare=actions.damage_newest,
        applies=lambda session: intact_checkpoints(session) > 1,
    ),
    Fault(
        name="damaged best weights", prepare=actions.damage_best, suspends=("best",),
        applies=lambda session: (session.run / "best" / "model.safetensors").exists(),
    ),
    Fault(name="moved directory", prepare=files.move_run, applies=is_run),
    Fault(name="lost machine", prepare=files.lose_machine, applies=has_copy),
]  # fmt: skip

FOREIGN_FAULTS = [
    Fault(name="foreign files, hidden", prepare=files.plant_hidden),
    Fault(name="foreign files", prepare=files.plant_visible, applies=is_run),
    Fault(
        name="foreign files beside checkpoints", prepare=files.plant_beside_checkpoints,
        applies=lambda session: (session.run / "checkpoints").is_dir(),
    ),
    Fault(
        name="foreign files beside copies", prepare=files.plant_beside_copies,
        applies=lambda session: session.place is not None,
    ),
]  # fmt: skip

MIXED_FAULTS = [
    Fault(
        name=f"{name} of another run", prepare=prepare, refusals=(1, 2),
        applies=lambda session, name=name: has_other_run(session) and (session.run / name).exists(),
    )
    for name, prepare in (
        *((name, files.mix_file(name)) for name in ("plan.json", "state.json", "events.jsonl", "run.toml", "best")),
        *((name, files.mix_file(name)) for name in ("light", "ledger.json")),
    )
] + [
    Fault(
        name="newer checkpoint of another run", prepare=files.mix_newer_checkpoint, refusals=(1, 2),
        applies=lambda session: has_other_run(session) and session.remaining,
    ),
    Fault(
        name="same checkpoint of another run", prepare=files.mix_same_checkpoint, refusals=(1, 2),
        applies=lambda session: has_other_run(session) and bool(files.common_checkpoints(session)),
    ),
]  # fmt: skip

CLOCK_FAULTS = [
    Fault(name="another wall clock", prepare=environment.other_clock),
    Fault(name="wall clock jumps", prepare=environment.unchanged_clock, act=environment.jump),
]

OTHER_BITS = {
    "MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "OMP_NUM_THREADS": "2",
}  # fmt: skip
"""Variables with which the libraries may round differently: a run that has begun without them may be refused."""
SAME_BITS = {
    "LC_ALL=C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "LC_ALL=tr_TR.UTF-8": {"LC_ALL": "tr_TR.UTF-8"},
    "PYTHONIOENCODING=ascii": {"PYTHONIOENCODING": "ascii:strict"},
    "TZ": {"TZ": "Pacific/Kiritimati"},
    "no HOME": {"HOME": None, "XDG_CACHE_HOME": None},
}
ENVIRONMENT_FAULTS = [
    *(
        Fault(
            name=f"environment: {name}={value}", prepare=environment.variables(**{name: value}), refusals=(1, 2),
            applies=lambda session, name=name: (
                intact_checkpoints(session) > 0 and (name == "OMP_NUM_THREADS" or depends_on_kernels(session))
            ),
        )
        for name, value in OTHER_BITS.items()
    ),
    *(
        Fault(
            name=f"environment: {name}", prepare=environment.variables(**values),
            applies=lambda session: session.configuration.kind == "engine",  # importing transformers anew takes long
        )
        for name, values in SAME_BITS.items()
    ),
    Fault(name="environment: TMPDIR", prepare=environment.temporary_folder),
]  # fmt: skip

STREAM_FAULTS = [
    Fault(name="closed stderr", prepare=actions.close_stderr, suspends=("stderr",)),
    Fault(name="broken pipe as stderr", prepare=actions.open_pipe, act=actions.close_pipe, suspends=("stderr",)),
]

MEMORY_FAULTS = [
    Fault(
        name="out of memory", prepare=actions.exhaust_memory, suspends=("microbatch",),
        applies=lambda session: has_recipe(session) and session.configuration.exact,
    ),
]  # fmt: skip
AREAS = {
    "files": FILE_FAULTS,
    "foreign files": FOREIGN_FAULTS,
    "another run": MIXED_FAULTS,
    "clock": CLOCK_FAULTS,
    "environment": ENVIRONMENT_FAULTS,
    "streams": STREAM_FAULTS,
    "memory": MEMORY_FAULTS,
    "process": PROCESS_FAULTS,
    "readers": READERS,
    "disk": DISK_FAULTS,
}
"""A session has one fault of an area at most. They are prepared in this order: nothing can be on a full disk."""

FAULTS = {fault.name: fault for faults in AREAS.values() for fault in faults}
AREA_OF = {fault.name: area for area, faults in AREAS.items() for fault in faults}

REACHED = {
    "session limit": lambda session: state_of(session).get("reason", "").startswith("session limit"),
    "out of memory": lambda session: "memory" in session.entries(),
}
"""Conditions that are read from the log and the state when the session has ended."""


def state_of(session):
    try:
        return json.loads((session.run / "state.json").read_text())
    except (OSError, ValueError):
        return {}


def applies(fault, session):
    """Return whether a fault can happen in this session."""
    is_possible = session.disk.is_mounted if AREA_OF[fault.name] == "disk" else True
    if AREA_OF[fault.name] == "clock":
        is_possible = session.library is not None
    return is_possible and bool(fault.applies(session))


def moment(fault, session, generator):
    """Return the number of updates of the session and the seconds after which the fault's action begins."""
    if fault.moment == "start":
        return 0, 0.0
    if fault.moment == "slow":
        return session.slow_update, generator.uniform(0, 0.5)
    if fault.moment == "any" and generator.random() < 0.25:
        return 0, generator.uniform(0, session.usual_seconds + 2 * session.fresh)
    return generator.randint(1, max(1, session.remaining // 2)), generator.uniform(0, 0.03)
