"""Sessions of training on the GPU, and what a run has to be after its memory ran out somewhere.

A run that ends has the bits of a run without failures in which each update had the same sizes (microbatch, activations
that are recomputed, the optimizer's kernel). A session that does not end it has the documented error, and the same
command then continues from a checkpoint that is intact. Nothing else is right.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors
import torch

from shoestring.recipe.finding import choose
from shoestring.training import loop, steps
from shoestring.training.checkpoint.store import Store
from shoestring.training.engine.parallel.ranks import ONE_RANK, Ranks
from shoestring.training.request import SessionRequest
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.stored import StoredPlan
from shoestring.training.session.deadline import Deadline
from shoestring.training.session.signals import StopSignals
from shoestring.training.session.stop import Stop

SizesByUpdate = tuple[tuple[int, str | None, str | None], ...]
"""For each update its microbatch, activation checkpointing and optimizer kernel."""


@dataclass
class Observed:
    """What the updates of a run were made of, the last attempt of each."""

    sizes: dict[int, tuple[int, str | None, str | None]] = field(default_factory=dict)
    expected: dict[int, list[int]] = field(default_factory=dict)
    """The samples of each update's effective batch."""
    samples: dict[int, list[int]] = field(default_factory=dict)
    """Those that this process computed, if they could be read."""

    @property
    def by_update(self) -> SizesByUpdate:
        return tuple(self.sizes[update] for update in sorted(self.sizes))


def other_batches(*processes: Observed) -> list[str]:
    """Return the updates that these processes together have made of other samples than the effective batch."""
    return [
        f"update {update}: {computed} instead of {expected}"
        for update, expected in processes[0].expected.items()
        if (computed := [sample for process in processes for sample in process.samples[update]])
        and sorted(computed) != sorted(expected)
    ]


@contextmanager
def observing(recipe: Any, observed: Observed, sizes: SizesByUpdate | None = None) -> Iterator[None]:
    """Observe the updates, or make them with these `sizes`."""
    one_update = steps.one_update

    def observe(session: Any) -> None:
        state, number = session.state, session.state.update
        if sizes:
            micro_batch, checkpointing, kernel = sizes[number]
            state.resize(
                replace(state.sizes, micro_batch=micro_batch, checkpointing=checkpointing, optimizer_kernel=kernel)
            )
        recipe.samples.clear()
        one_update(session)
        if session.state.update != number + 1:
            return
        state = session.state
        observed.sizes[number] = (state.sizes.micro_batch, state.sizes.checkpointing, state.sizes.optimizer_kernel)
        observed.expected[number] = expected = list(session.updates.order.indices(number))
        own_count = len(expected) // session.request.ranks.size
        observed.samples[number] = [sample for batch in recipe.samples for sample in batch][-own_count:]

    steps.one_update = observe
    try:
        yield
    finally:
        steps.one_update = one_update


def train(
    recipe: Any,
    run: Path,
    values: Mapping[str, Any],
    *,
    observed: Observed,
    sizes: SizesByUpdate | None = None,
    library: Callable[[], Any] | None = None,
    ranks: Ranks = ONE_RANK,
) -> str:
    """Run one session of training, without a plan, and return its status. All `ranks` call it."""
    loaded, settings = choose(recipe, dict(values))
    settings = settings.replace(
        micro_batch=settings.micro_batch or loaded.effective_batch, precision=settings.precision or "fp32"
    )
    directory = RunDirectory(run)
    if ranks.is_first:
        directory.create()
        StoredPlan(recipe=loaded.name).write(directory.plan_file)
    ranks.call(lambda: None)
    lock = directory.locked() if ranks.is_first else nullcontext()
    with lock, StopSignals() as signals, observing(recipe, observed, sizes):
        request = SessionRequest(
            loaded=loaded,
            settings=settings,
            run=directory,
            target="local",
            device=torch.device("cuda", ranks.rank),
            stop=Stop(deadline=Deadline(1000), signals=signals),
            ranks=ranks,
        )
        return loop.train(request, library() if library else None).status


def bits(run: Path) -> dict[str, Any]:
    """Return what the sizes of the updates determine: weights, optimizer states and averages, as files or tensors."""
    newest = max((run / "checkpoints").glob("update-*"))
    files = ("model", "optimizer", "averaged")
    contents = {name: newest / f"{name}.safetensors" for name in files}
    return {
        "name": newest.name,
        **{name: path.read_bytes() if path.exists() else b"" for name, path in contents.items()},
        **{f"scaler {name}": value for name, value in (_section(newest, "scaler") or {}).items()},
        "light": _tensors(run / "light"),
        "best": _tensors(run / "best") if (run / "best").exists() else None,
    }


def _section(checkpoint: Path, name: str) -> Any:
    return json.loads((checkpoint / "state.json").read_text()).get(name)


def _tensors(folder: Path) -> dict[str, bytes]:
    """Return tensors rather than the file, in which safetensors writes metadata in any order."""
    with safetensors.safe_open(folder / "model.safetensors", framework="np") as file:
        return {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118


def damaged(run: Path) -> list[str]:
    """Return what is wrong with the checkpoint that the next session would continue from."""
    problems: list[str] = []
    folder = run / "checkpoints"
    if folder.exists():
        Store(
            folder, is_writer=False, on_damaged=lambda path, file, why: problems.append(f"{path}/{file}: {why}")
        ).load()
    return problems
