"""A script's own trainer under `surviving`: a library's loop, whose updates are repeated in smaller microbatches."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from shoestring.base.errors import RunError
from shoestring.integrations.splitting import SplitUpdates
from shoestring.integrations.trainer import surviving
from shoestring.training.engine.memory import out_of_memory_message

from . import sessions
from .campaign import CONTINUED, SAME, Ended, ended

_SAMPLES, _MICRO_BATCH = 8, 2


class Regression(nn.Module):
    """A model whose loss is a mean over the samples, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Dropout(0.3), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.layers(x).squeeze(-1) - y).square().mean()}


class Sums(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        x = torch.randn(4, generator=torch.Generator().manual_seed(index))
        return {"x": x, "y": x.sum()}


class Script:
    """A script that trains for two updates of two microbatches each, in one session or in two."""

    def __init__(self, **arguments: Any) -> None:
        self._arguments = arguments
        self._references: dict[Any, Any] = {}

    def begin(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: dict[int, int] = {}

    def act(self) -> None:
        self._train(self._folder / "run")

    def check(self, result: Ended) -> str:
        run = self._folder / "run"
        if result.error:
            problems = sessions.damaged(run)
            assert not problems, f"after the error: {problems}"
            again = ended(self.act)
            assert not again.error and not again.traceback, f"the same script again: {again}"
        sizes = tuple(self._sizes[update] for update in sorted(self._sizes))
        if sizes not in self._references:
            reference = self._folder.parent / f"reference{len(self._references)}"
            self._train(reference, dict(enumerate(sizes)))
            self._references[sizes] = _bits(reference)
        expected, present = self._references[sizes], _bits(run)
        different = [name for name in expected if expected[name] != present[name]]
        assert not different, f"other bits than with {sizes} from the start: {different}"
        return CONTINUED if result.error else SAME

    def _train(self, run: Path, sizes: dict[int, int] | None = None) -> None:
        arguments = TrainingArguments(
            output_dir=str(run.parent / "own"), per_device_train_batch_size=_MICRO_BATCH, gradient_accumulation_steps=2,
            num_train_epochs=1, learning_rate=1e-2, report_to=[], logging_steps=1, save_strategy="steps", save_steps=1,
            seed=5, disable_tqdm=True, **self._arguments,
        )  # fmt: skip
        try:
            with (
                _observing(self._sizes if sizes is None else {}, sizes),
                surviving(run, save_every_seconds=0) as survive,
            ):
                torch.manual_seed(3)
                survive(Trainer)(model=Regression(), args=arguments, train_dataset=Sums()).train()
        except RuntimeError as error:
            # The library's own error reaches the script, as it is documented.
            message = out_of_memory_message(error)
            if message is None:
                raise
        else:
            return
        raise RunError(f"out of memory in the script: {message}", hint="that of the library")


@contextmanager
def _observing(observed: dict[int, int], sizes: dict[int, int] | None) -> Iterator[None]:
    """Observe the microbatch of each update, or make the updates with these `sizes`."""
    begin_update, make = SplitUpdates.begin_update, SplitUpdates.make

    def begin(self: Any, batches: Any) -> None:
        if sizes:
            self._state.sizes = replace(self._state.sizes, micro_batch=sizes[self._trainer.state.global_step])
        begin_update(self, batches)

    def observe(self: Any, *arguments: Any) -> Any:
        result = make(self, *arguments)
        observed[self._trainer.state.global_step] = min(self._state.sizes.micro_batch, _MICRO_BATCH)
        return result

    SplitUpdates.begin_update, SplitUpdates.make = begin, observe  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        SplitUpdates.begin_update, SplitUpdates.make = begin_update, make  # type: ignore[method-assign]


def _bits(run: Path) -> dict[str, Any]:
    newest = max((run / "checkpoints").glob("update-*"))
    return {"name": newest.name} | {
        name: (newest / f"{name}.safetensors").read_bytes() for name in ("model", "optimizer")
    }
