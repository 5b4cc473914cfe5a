"""Many runs, each killed once or twice and continued to its end, in forked children of a process that imported torch.

    python -m tests.crash.schedule FOLDER KILLS SEED KIND

prints a report as JSON. Half of the kills happen before or after a disk operation, each kind of operation in turn, or
during the copy of the state; the other half at a random time.
"""

import json
import os
import random
import re
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

from shoestring.training.checkpoint.manifest import DamagedFileError
from shoestring.training.checkpoint.sections import read_sections
from shoestring.training.checkpoint.snapshot import HostCopy
from tests.sessions import final_bits, session
from tests.training.checkpoint.faults import Disk

UPDATES_BETWEEN_SAVES = 2
COPY = "copy the state"
CHECKPOINT = "update-" + 8 * "[0-9]"
"""A pattern for the names of checkpoints; the user may have folders with other names beside them."""


class Small:
    """Twelve updates of a model with state besides its weights."""

    epochs = 4
    effective_batch = 10
    learning_rate = 0.01

    def __init__(self, on_update):
        self._on_update = on_update

    def model(self):
        return nn.Sequential(nn.Linear(2, 64), nn.BatchNorm1d(64), nn.Dropout(0.2), nn.Linear(64, 1))

    def batch(self, size):
        return torch.zeros(size, 2), torch.zeros(size, 1)

    def loss(self, model, batch):
        if torch.is_grad_enabled():
            self._on_update()
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def data(self):
        inputs = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
        dataset = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
        return {"train": Subset(dataset, range(30)), "validation": Subset(dataset, range(30, 40))}


class Kill:
    """Kills this process at the `count`th occurrence of `phase`, before or `after` it."""

    def __init__(self, phase, count, after):
        self.phase, self.count, self.after, self.doomed = phase, count, after, False

    def __call__(self, phase):
        if self.doomed:
            os.kill(os.getpid(), signal.SIGKILL)
        if phase == self.phase:
            self.count -= 1
            if self.count == 0:
                self.doomed = True
                if not self.after:
                    os.kill(os.getpid(), signal.SIGKILL)


def phase_of(name, path):
    return f"{name} {re.sub('[0-9]+', '#', Path(path).name)}"


def start_child(run, error_file, strike, work):
    """Run `work` in a forked child and return its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        with Path(os.devnull).open("w") as null:
            os.dup2(null.fileno(), 1)
            if not os.environ.get("LOUD"):
                os.dup2(null.fileno(), 2)
        with Disk(run, lambda number, name, path: strike(phase_of(name, path))).watching():
            take = HostCopy.take

            def take_twice(self, state, *helper):
                strike(COPY)
                half = {name: state[name] for name in list(state)[: len(state) // 2]}
                take(self, half, *helper)
                strike(COPY)
                return take(self, state, *helper)

            HostCopy.take = take_twice
            work()
        os._exit(0)
    except BaseException as error:  # noqa: BLE001  (the parent sees the status)
        error_file.write_text(repr(error))
        os._exit(1)


def run_session(run, kind, strike=lambda phase: None, after=None):
    """Run one session in a child, killed by `strike` or `after` so many seconds.

    Returns whether it was killed, and the number of updates that it started.
    """
    started_updates, error_file = run.with_suffix(".started"), run.with_suffix(".error")
    started_updates.write_bytes(b"")
    descriptor = os.open(started_updates, os.O_WRONLY | os.O_APPEND)
    write = os.write
    recipe = Small(lambda: write(descriptor, b"."))
    pid = start_child(
        run, error_file, strike, lambda: session(recipe, run, {"save_every_updates": UPDATES_BETWEEN_SAVES}, kind=kind)
    )
    if after is not None:
        time.sleep(after)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(descriptor)
    killed = os.WIFSIGNALED(status)
    if not killed and os.WEXITSTATUS(status):
        raise AssertionError(error_file.read_text())
    return killed, started_updates.stat().st_size


def newest_checkpoint(run, without=()):
    """Return the update of the newest intact checkpoint, and the damaged checkpoints; `without` some of the paths."""
    newest, damaged = 0, []
    for path in sorted((run / "checkpoints").glob(CHECKPOINT), reverse=True):
        update = int(path.name[7:])
        if path in without:
            continue
        try:
            read_sections(path, update)
            newest = max(newest, update)
        except DamagedFileError as damage:
            damaged.append(f"{path.name}/{damage.file}: {damage.reason}")
    return newest, damaged


def count_phases(run, kind):
    """Return the number of times of each phase in an undisturbed session, and the session's seconds."""
    phase_log = run.with_suffix(".phases")
    with phase_log.open("ab", buffering=0) as file:
        start = time.monotonic()
        run_session(run, kind, lambda phase: file.write(f"{phase}\n".encode()))
        seconds = time.monotonic() - start
    return Counter(phase_log.read_text().splitlines()), seconds


def main(folder, count, seed, kind):
    torch.set_num_threads(1)
    start = time.monotonic()
    generator = random.Random(seed)
    # This session runs in this process, so that its children do not have to import anything.
    session(Small(lambda: None), folder / "straight", {"save_every_updates": UPDATES_BETWEEN_SAVES}, kind=kind)
    bits = final_bits(folder / "straight")
    occurrences, seconds = count_phases(folder / "counted", kind)
    names = sorted(occurrences)
    generator.shuffle(names)
    report = {"killed": 0, "seconds": 0.0, "phases": Counter(), "damaged": [], "other_bits": 0, "lost": Counter()}
    run_number = 0
    while report["killed"] < count:
        run = folder / f"run{run_number}"
        run_number += 1
        for _ in range(generator.choice([1, 1, 1, 2])):
            before, _ = newest_checkpoint(run)
            if run_number % 2:
                phase = names[run_number // 2 % len(names)]
                kill = Kill(phase, generator.randint(1, occurrences[phase]), generator.random() < 0.5)
                killed, started = run_session(run, kind, kill)
            else:
                phase = "at random"
                killed, started = run_session(run, kind, after=generator.uniform(0.2, 1.0) * seconds)
            if killed:
                after, damaged = newest_checkpoint(run)
                report["killed"] += 1
                report["phases"][phase] += 1
                report["damaged"] += damaged
                report["lost"][before + started - after] += 1
        run_session(run, kind)
        report["other_bits"] += final_bits(run) != bits
        shutil.rmtree(run)
    report["seconds"] = time.monotonic() - start
    report["kinds"] = len(names)
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
