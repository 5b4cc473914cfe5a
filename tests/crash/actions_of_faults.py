"""What the faults of `faults_of_sessions` do, before a session or in it.

An action is a generator that yields the seconds to wait before it continues; when the session ends, it continues at
once. It adds its fault to `session.reached` when the condition is really reached.
"""

import signal
import time

from tests.crash.logging_recipe import UPDATES
from tests.crash.schedule import CHECKPOINT

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


def suspend(target):
    """Stop processes until the limit of the session is over."""

    def act(session, generator):
        stopped = session.send(signal.SIGSTOP, target=target)
        end = session.started + session.limit + generator.uniform(0.5, 2)
        yield max(0.5, end - time.monotonic())
        if stopped and session.alive():
            session.reached.add(f"suspended beyond the limit: {target}")
        session.send(signal.SIGCONT, target="all")

    return act


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


def free_later(session, generator):
    yield generator.uniform(0, 4)
    session.reached.add("full disk at the start")
    session.disk.free()


# Preparations before a session


def set_limit(session, generator):
    # A session cannot predict the time of its start; Deadline reserves 3 s for its end.
    session.limit = round(3 + generator.uniform(1.2, 3) * session.usual_seconds, 1) + 4 * session.fresh
    session.pace = 2 * session.limit / UPDATES


def set_short_limit(session, generator):
    session.limit = round(3 + generator.uniform(0.7, 1.2) * session.usual_seconds, 1) + 4 * session.fresh
    session.pace = 2 * session.limit / UPDATES


def slow_down(session, generator):
    session.slow_update = generator.randint(1, max(1, session.remaining))
    session.faults["slow"] = {"update": session.slow_update - 1, "seconds": 4.0}


def exhaust_memory(session, generator):
    session.faults["memory"] = {
        "error": generator.choice(["torch.OutOfMemoryError", "MemoryError"]),
        "update": generator.randrange(max(1, session.remaining)),
        "above": generator.choice([None, None, 4, 2]),
    }


def close_stderr(session, generator):
    session.stderr = "closed"
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
    newest = max((session.run / "checkpoints").glob(CHECKPOINT))
    files = sorted(path for path in newest.iterdir() if path.stat().st_size)
    session.damaged_checkpoint = newest.name
    session.damage = flip_byte(generator.choice(files), generator)
    session.reached.add("damaged newest checkpoint")


def damage_best(session, generator):
    session.damage = flip_byte(session.run / "best" / "model.safetensors", generator)
    session.reached.add("damaged best weights")


def remount_read_only(session, generator):
    session.disk.read_only()


def fill_before(session, generator):
    session.disk.fill()
