"""Many runs, each killed once or twice and continued to its end, in children of one process that has torch already.

    python -m tests.crash.schedule FOLDER KILLED SEED KIND

prints what happened as JSON. Half of the kills are at an operation on the disk, every kind of them in turn, before it
or after it, or while the state is copied; the other half at a random instant.
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

from shoestring.checkpoint import reading
from shoestring.checkpoint.manifest import Damaged
from shoestring.checkpoint.snapshot import HostCopy
from tests.checkpoint.faults import Disk
from tests.sessions import final_bits, session

EVERY = 2  # updates between saves
COPY = "copy the state"


class Small:
    """Twelve updates of a model whose state is more than its weights."""

    epochs = 4
    effective_batch = 10
    learning_rate = 0.01

    def __init__(self, started):
        self._started = started

    def model(self):
        return nn.Sequential(nn.Linear(2, 64), nn.BatchNorm1d(64), nn.Dropout(0.2), nn.Linear(64, 1))

    def batch(self, size):
        return torch.zeros(size, 2), torch.zeros(size, 1)

    def loss(self, model, batch):
        if torch.is_grad_enabled():
            self._started()
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def data(self):
        inputs = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
        whole = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
        return {"train": Subset(whole, range(30)), "validation": Subset(whole, range(30, 40))}


class Kill:
    """This process ends at the `count`th time that `phase` comes, `after` it or before."""

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


def child(run, told, strike, work):
    """Run `work` in a child; returns its id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            if not os.environ.get("LOUD"):
                os.dup2(nowhere.fileno(), 2)
        with Disk(run, lambda number, name, path: strike(phase_of(name, path))).watching():
            take = HostCopy.take

            def copied(self, state, *helper):
                strike(COPY)
                half = {name: state[name] for name in list(state)[: len(state) // 2]}
                take(self, half, *helper)
                strike(COPY)
                return take(self, state, *helper)

            HostCopy.take = copied
            work()
        os._exit(0)
    except BaseException as error:  # noqa: BLE001  (the parent sees the status)
        told.write_text(repr(error))
        os._exit(1)


def one_session(run, kind, strike=lambda phase: None, after=None):
    """One session in a child, killed by itself or `after` seconds; whether it was killed, and the updates it began."""
    begun, told = run.with_suffix(".begun"), run.with_suffix(".error")
    begun.write_bytes(b"")
    descriptor = os.open(begun, os.O_WRONLY | os.O_APPEND)
    write = os.write
    recipe = Small(lambda: write(descriptor, b"."))
    pid = child(run, told, strike, lambda: session(recipe, run, {"save_every_updates": EVERY}, kind=kind))
    if after is not None:
        time.sleep(after)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(descriptor)
    killed = os.WIFSIGNALED(status)
    if not killed and os.WEXITSTATUS(status):
        raise AssertionError(told.read_text())
    return killed, begun.stat().st_size


def newest(run):
    """The newest checkpoint that is whole, and those that have a name and are not."""
    found, damaged = 0, []
    for path in sorted((run / "checkpoints").glob("update-*"), reverse=True):
        update = int(path.name[7:])
        try:
            reading.sections(path, update)
            found = max(found, update)
        except Damaged as damage:
            damaged.append(f"{path.name}/{damage.file}: {damage.why}")
    return found, damaged


def phases(run, kind):
    """How often each phase comes in a session that nothing disturbs, and the seconds it takes."""
    seen = run.with_suffix(".phases")
    with seen.open("ab", buffering=0) as file:
        began = time.monotonic()
        one_session(run, kind, lambda phase: file.write(f"{phase}\n".encode()))
        seconds = time.monotonic() - began
    return Counter(seen.read_text().splitlines()), seconds


def main(folder, count, seed, kind):
    torch.set_num_threads(1)
    began = time.monotonic()
    generator = random.Random(seed)
    # In this process, so that its children find all that is imported on the way imported.
    session(Small(lambda: None), folder / "straight", {"save_every_updates": EVERY}, kind=kind)
    bits = final_bits(folder / "straight")
    often, seconds = phases(folder / "watched", kind)
    names = sorted(often)
    generator.shuffle(names)
    report = {"killed": 0, "seconds": 0.0, "phases": Counter(), "damaged": [], "other_bits": 0, "lost": Counter()}
    tried = 0
    while report["killed"] < count:
        run = folder / f"run{tried}"
        tried += 1
        for _ in range(generator.choice([1, 1, 1, 2])):
            before, _ = newest(run)
            if tried % 2:
                phase = names[tried // 2 % len(names)]
                kill = Kill(phase, generator.randint(1, often[phase]), generator.random() < 0.5)
                killed, begun = one_session(run, kind, kill)
            else:
                phase = "at random"
                killed, begun = one_session(run, kind, after=generator.uniform(0.2, 1.0) * seconds)
            if killed:
                whole, damaged = newest(run)
                report["killed"] += 1
                report["phases"][phase] += 1
                report["damaged"] += damaged
                report["lost"][before + begun - whole] += 1
        one_session(run, kind)
        report["other_bits"] += final_bits(run) != bits
        shutil.rmtree(run)
    report["seconds"] = time.monotonic() - began
    report["kinds"] = len(names)
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
