"""The same training on two processes: DistributedDataParallel by hand, Shoestring, Accelerate, Lightning, and FSDP2 by
hand; and on one process.

Each rank has one thread. The model of the first rank records the time at the start of every forward, so that the
interval between two forwards is one complete update in any loop. parallel.py starts each rank as
`python -m benchmarks.engine.parallel_contenders QUESTION`.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from benchmarks.engine.contenders import NEVER, RATE, Clock, TimedModel, data
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

BATCH = 512
"""Samples of an update, of all ranks."""


def make_model(clock: Clock | None, question: dict[str, Any]) -> TimedModel:
    """Return the model, with equal weights on all ranks."""
    torch.manual_seed(0)
    model = TimedModel(clock or Silent(question))
    if "pause" in question:  # after each activation
        layers = [layer if isinstance(layer, nn.Linear) else Pausing(question["pause"]) for layer in model.layers]
        model.layers = nn.Sequential(*layers)
    return model


class Pause(torch.autograd.Function):
    """The time that a device computes for a layer, without the use of a processor: backward takes twice as long."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds * len(x)
        time.sleep(ctx.seconds)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(2 * ctx.seconds)
        return gradients[0], None


class Pausing(nn.Module):
    """Computes nothing for so many seconds for each sample."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def forward(self, x: torch.Tensor) -> Any:
        return Pause.apply(x, self._seconds)  # type: ignore[no-untyped-call]


class Silent:
    """The clock of a rank that does not measure."""

    def __init__(self, question: dict[str, Any]) -> None:
        self.layers, self.width = question["shape"]

    def tick(self) -> None:
        pass


def loader(samples: Dataset[Any], ranks: int) -> Any:
    return DataLoader(samples, batch_size=BATCH // ranks, sampler=DistributedSampler(samples, ranks))


def forever(batches: Any) -> Iterator[Any]:
    while True:
        yield from batches


def by_hand(clock: Clock | None, question: dict[str, Any], _: Path) -> None:
    """Train with DistributedDataParallel, or with one process without it."""
    ranks, model = question["ranks"], make_model(clock, question)
    wrapped: nn.Module = model
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    samples = data(model.clock)
    batches = loader(samples, ranks) if ranks > 1 else DataLoader(samples, batch_size=BATCH, shuffle=True)
    train_by_hand(wrapped, optimizer, batches)


def fully_sharded(clock: Clock | None, question: dict[str, Any], _: Path) -> None:
    """Train with FSDP2: each layer is a block."""
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo")
    model = make_model(clock, question)
    for layer in model.layers:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    train_by_hand(model, optimizer, loader(data(model.clock), question["ranks"]))


def train_by_hand(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> None:
    for x, y in forever(batches):
        optimizer.zero_grad(set_to_none=True)
        model(x, y)["loss"].backward()
        optimizer.step()


def slow_down(bytes_per_second: float) -> None:
    """Let each message between two ranks take longer, as on a slower link: its process sleeps after it, and does not
    use a processor.
    """
    from shoestring.training.engine.parallel.ranks import Ranks

    add = Ranks.add

    def add_slowly(ranks: Ranks, *tensors: torch.Tensor) -> None:
        add(ranks, *tensors)
        time.sleep(len(ranks.pairs) * sum(tensor.nbytes for tensor in tensors) / bytes_per_second)

    Ranks.add = add_slowly  # type: ignore[method-assign]


def exchange_after_backward() -> None:
    """Let ranks not exchange gradients during backward."""
    from shoestring.training.engine.parallel.ranks import Ranks

    Ranks.can_overlap = False  # type: ignore[assignment, method-assign]


def shoestring(clock: Clock | None, question: dict[str, Any], folder: Path) -> None:
    """Train as `torchrun -m shoestring train` does, with the sharding of the question."""
    import shoestring as shoestring_package
    from shoestring.recipe.finding import choose
    from shoestring.training.run_directory.directory import RunDirectory
    from shoestring.training.run_directory.stored import StoredPlan

    model, samples = make_model(clock, question), question.get("batch", BATCH)
    if "link" in question:
        slow_down(question["link"])
    if question.get("exchange") == "after backward":
        exchange_after_backward()

    class Recipe:
        epochs, effective_batch, seed = NEVER, samples, 0

        def model(self) -> nn.Module:
            return model

        def batch(self, size: int) -> Any:
            return torch.zeros(size, model.clock.width), torch.zeros(size, model.clock.width)

        def loss(self, model: nn.Module, batch: Any) -> Any:
            return model(*batch)["loss"]

        def optimizer(self, model: nn.Module) -> Any:
            return torch.optim.AdamW(model.parameters(), lr=RATE)

        def blocks(self, model: Any) -> list[nn.Module]:
            return [layer for layer in model.layers if isinstance(layer, nn.Linear)]

        def data(self) -> Any:
            return data(model.clock)

    ranks = question["ranks"]
    values = {
        "micro_batch": samples // ranks,
        "precision": "fp32",
        "gpus": ranks,
        "logical_shards": ranks,
        "sharding": question["sharding"],
        "save_every_seconds": 1e6,
    }
    directory = RunDirectory(folder)
    if clock:
        loaded, settings = choose(Recipe(), values)
        settings = settings.replace(checkpointing="no", optimizer_kernel="for-loop")
        directory.create()
        StoredPlan.from_recipe(loaded, {"settings": settings.json()}).write(directory.plan_file)
    shoestring_package.train(Recipe(), run=folder, on="cpu", limit_seconds=12 * 3600, allow_inexact=True, **values)


def accelerate(clock: Clock | None, question: dict[str, Any], _: Path) -> None:
    """Train with Accelerate's loop."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = make_model(clock, question)
    samples = data(model.clock)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    batches = DataLoader(samples, batch_size=BATCH // question["ranks"], shuffle=True)
    wrapped, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    for x, y in forever(batches):
        optimizer.zero_grad()
        accelerator.backward(wrapped(x, y)["loss"])
        optimizer.step()


def lightning(clock: Clock | None, question: dict[str, Any], folder: Path) -> None:
    """Train with the Trainer of Lightning."""
    from pytorch_lightning import LightningModule, Trainer
    from pytorch_lightning.plugins.environments import TorchElasticEnvironment

    timed = make_model(clock, question)

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.timed = timed

        def training_step(self, batch: Any, _: int) -> Any:
            return self.timed(*batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=RATE)

    trainer = Trainer(
        accelerator="cpu", devices=question["ranks"], strategy="ddp", max_steps=NEVER, max_epochs=-1, logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, default_root_dir=folder,
        plugins=[TorchElasticEnvironment()],
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(data(timed.clock), batch_size=BATCH // question["ranks"], shuffle=True))


LOOPS: dict[str, Callable[..., None]] = {
    "by hand": by_hand,
    "FSDP2 by hand": fully_sharded,
    "shoestring": shoestring,
    "Accelerate": accelerate,
    "Lightning": lightning,
}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # For all contenders, as in the engine; in this benchmark these are the same kernels.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    question = json.loads(sys.argv[1])
    is_first = int(os.environ.get("RANK", "0")) == 0
    LOOPS[question["loop"]](Clock(question) if is_first else None, question, Path(question["folder"]))
