"""Training sessions that stop where a test requests it."""

import copy
import json
import os
import signal
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import safetensors
import torch

from shoestring.recipe.finding import choose
from shoestring.training.engine.parallel.ranks import Ranks
from shoestring.training.loop import train
from shoestring.training.request import SessionRequest
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.stored import StoredPlan
from shoestring.training.session.deadline import Deadline
from shoestring.training.session.signals import StopSignals
from shoestring.training.session.stop import Stop

CPU = torch.device("cpu")


class ActingAtLoss:
    """A recipe that calls `act` when its loss is computed for the `count`th time."""

    def __init__(self, recipe, count, act):
        self._recipe, self._count, self._act = recipe, count, act

    def __getattr__(self, name):
        return getattr(self._recipe, name)

    def __copy__(self):
        return copy.copy(self._recipe)  # for the comparison with halves, whose losses are not counted

    def loss(self, model, batch, **stage):
        self._count -= 1
        if self._count == 0:
            self._act()
        return self._recipe.loss(model, batch, **stage)


def session(
    recipe,
    run: Path,
    values,
    *,
    stop="",
    at=0,
    allow_inexact=False,
    kind="engine",
    wrap=lambda recipe: recipe,
    device=CPU,
):
    """Run one session of `recipe` in `run`, stopped by `limit`, `SIGTERM` or `SIGKILL` in the `at`th loss.

    `kind` is what makes the updates: "engine" or "trainer".
    """
    loaded, settings = choose(recipe, values)
    clock = Clock()
    actions = {
        "": lambda: None,
        "limit": clock.jump,
        "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
        "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    }
    loaded = replace(loaded, recipe=_with_updates_by(kind, ActingAtLoss(wrap(loaded.recipe), at, actions[stop])))
    settings = settings.replace(
        micro_batch=settings.micro_batch or loaded.effective_batch, precision=settings.precision or "fp32"
    )
    deadline = Deadline(1000, clock=clock)
    return run_session(loaded, settings, run, deadline, allow_inexact=allow_inexact, device=device)


def _with_updates_by(kind, recipe):
    if kind == "engine":
        return recipe
    from tests.by_trainer import ByTrainer

    return ByTrainer(recipe)


def run_session(loaded, settings, run: Path, deadline, *, allow_inexact=False, device=CPU):
    """Run one session of training, without a plan."""
    library = None
    if loaded.parts.learning.trainer:
        from shoestring.integrations.library import LibraryUpdates

        library = LibraryUpdates()
    directory, ranks = RunDirectory(run), Ranks.join()
    if ranks.is_first:
        directory.create()
        StoredPlan(recipe=loaded.name).write(directory.plan_file)
    ranks.call(lambda: None)
    with directory.locked() if ranks.is_first else nullcontext(), StopSignals() as signals:
        request = SessionRequest(
            loaded=loaded,
            settings=settings,
            run=directory,
            target="local",
            device=device,
            stop=Stop(deadline=deadline, signals=signals),
            allow_inexact=allow_inexact,
            ranks=ranks,
        )
        return train(request, library)


class Clock:
    """A clock that does not advance until it jumps past every limit."""

    now = 0.0

    def __call__(self):
        return self.now

    def jump(self):
        self.now = 1e6


def final_bits(run: Path):
    """Return the final content of a run that must be bit-identical: files as bytes, the rest as JSON."""
    return {**final_checkpoint(run), "light": light_bits(run / "light"), "best": light_bits(run / "best")}


def final_checkpoint(run: Path):
    """Return the content of the newest checkpoint that must be bit-identical, and the run's metrics."""
    newest = max((run / "checkpoints").glob("update-" + 8 * "[0-9]"))
    state = json.loads((newest / "state.json").read_text())
    state.get("log", {}).pop("seconds", None)  # the only measured value of a trainer's state
    return {
        "name": newest.name,
        "model": (newest / "model.safetensors").read_bytes(),
        "optimizer": (newest / "optimizer.safetensors").read_bytes(),
        "averaged": file.read_bytes() if (file := newest / "averaged.safetensors").exists() else b"",
        "state": state,
        "metrics": json.loads((run / "state.json").read_text())["metrics"],
    }


def light_bits(folder: Path):
    """Return metadata and tensors rather than the file's bytes, since safetensors writes metadata in any order."""
    with safetensors.safe_open(folder / "model.safetensors", framework="np") as file:
        return file.metadata(), {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118


if __name__ == "__main__":
    import sys

    torch.set_num_threads(1)
    arguments = json.loads(sys.argv[1])
    session(
        arguments["recipe"],
        Path(arguments["run"]),
        arguments["values"],
        stop=arguments["stop"],
        at=arguments["at"],
        device=torch.device(arguments.get("device", "cpu")),
    )
