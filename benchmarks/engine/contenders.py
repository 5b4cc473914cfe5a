"""The contenders: the same training with a hand-written loop, Shoestring, Hugging Face Trainer and Lightning Trainer.

Each runs in its own process. The model records the time at the start of every forward, so that the interval between two
forwards is one complete update in any loop. compare.py starts the processes as
`python -m benchmarks.engine.contenders QUESTION`.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH, SAMPLES = 64, 4096
SMALL, LARGE = (4, 1024), (10, 2048)
"""Number of layers and their width: states of 48 MiB and 480 MiB with AdamW."""
RATE = 1e-4
NEVER = 10**6
"""A number of updates that is never reached: the clock ends the process long before."""
KEEP = 2


class Clock:
    """Counts updates, sends its measurements, and ends the process as the mode in `question` requires."""

    def __init__(self, question: dict[str, Any]) -> None:
        self._question = question
        self.layers, self.width = question["shape"]
        self._answers = os.fdopen(question["to"], "w")
        self._requests = os.fdopen(question["from"])
        self._start_times: list[float] = []
        self._cpu_start = 0.0

    def tick(self) -> None:
        """Record the start of an update."""
        self._start_times.append(time.monotonic())
        is_finished = getattr(self, f"_{self._question['mode']}")()
        if is_finished:
            os._exit(0)

    def _rounds(self) -> bool:
        """Run requested blocks of updates; the first block is warm-up."""
        if len(self._start_times) <= self._question["updates"]:
            return False
        self._send([self._start_times[-1] - self._start_times[0], time.process_time() - self._cpu_start])
        answer = self._requests.readline()
        if not answer.strip():
            return True
        self._question["updates"] = int(answer)
        self._start_times, self._cpu_start = [time.monotonic()], time.process_time()
        return False

    def _saves(self) -> bool:
        """Run a number of updates with saves."""
        if len(self._start_times) <= self._question["updates"]:
            return False
        self._send(self._start_times)
        return True

    def _first(self) -> bool:
        """Run only the first update."""
        if len(self._start_times) < 2:
            return False
        self._send(self._start_times[1])
        return True

    def _send(self, value: object) -> None:
        print(json.dumps(value), file=self._answers, flush=True)


class TimedModel(nn.Module):
    """A perceptron that reports every training forward to the clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(clock.layers):
            layers += [nn.Linear(clock.width, clock.width), nn.GELU()]
        self.layers = nn.Sequential(*layers)
        self.clock = clock

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:  # the engine first compares a microbatch with its halves, in evaluation mode
            self.clock.tick()
        return {"loss": nn.functional.mse_loss(self.layers(x), y)}


def data(clock: Clock) -> TensorDataset:
    """Create pairs of vectors in memory, fetched one at a time because there is no `__getitems__`."""
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(*(torch.randn(SAMPLES, clock.width, generator=generator) for _ in range(2)))


def plain(clock: Clock, folder: Path, *, save_every: int | None, resume: bool) -> None:
    """Train with a hand-written loop and a blocking torch.save."""
    torch.manual_seed(0)
    model = TimedModel(clock).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    file, update = folder / "checkpoint.pt", 0
    if resume:
        checkpoint = torch.load(file, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        update = checkpoint["done"]
    loader = DataLoader(data(clock), batch_size=BATCH, shuffle=True)
    while update < NEVER:
        for x, y in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = model(x, y)["loss"]
            loss.backward()
            optimizer.step()
            update += 1
            if save_every and update % save_every == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": update}, file)


def shoestring(clock: Clock, folder: Path, *, save_every: int | None, **_: Any) -> None:
    """Train with the engine as `shoestring train` runs it: lock, record, deadline, deterministic kernels.

    It resumes automatically.
    """
    import shoestring as shoestring_package

    class Recipe:
        epochs, effective_batch, seed = NEVER * BATCH // SAMPLES, BATCH, 0

        def model(self) -> nn.Module:
            return TimedModel(clock)

        def batch(self, size: int) -> Any:
            return torch.zeros(size, clock.width), torch.zeros(size, clock.width)

        def loss(self, model: nn.Module, batch: Any) -> Any:
            return model(*batch)["loss"]

        def optimizer(self, model: nn.Module) -> Any:
            return torch.optim.AdamW(model.parameters(), lr=RATE)

        def data(self) -> Any:
            return data(clock)

    saving: dict[str, object] = {"save_every_seconds": 1e6, "keep_checkpoints": KEEP}
    if save_every:
        saving["save_every_updates"] = save_every
    store_plan(Recipe(), folder, saving)
    shoestring_package.train(Recipe(), run=folder, limit_seconds=12 * 3600, allow_inexact=True, **saving)


def store_plan(recipe: Any, folder: Path, saving: dict[str, object]) -> None:
    """Store a plan without tracing, during which the model would report forwards that are not training to the clock."""
    from shoestring.recipe.finding import choose
    from shoestring.training.run_directory.directory import RunDirectory
    from shoestring.training.run_directory.stored import StoredPlan

    loaded, settings = choose(recipe, {"micro_batch": BATCH, "precision": "fp32", **saving})
    settings = settings.replace(checkpointing="no", optimizer_kernel="for-loop")
    directory = RunDirectory(folder)
    directory.create()
    if directory.plan() is None:
        StoredPlan.from_recipe(loaded, {"settings": settings.json()}).write(directory.plan_file)


def hugging_face(clock: Clock, folder: Path, *, save_every: int | None, resume: bool) -> None:
    """Train with the Trainer of transformers, without output."""
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=BATCH, max_steps=NEVER, learning_rate=RATE,
        weight_decay=0.01, lr_scheduler_type="constant", max_grad_norm=0.0, optim="adamw_torch", use_cpu=True,
        dataloader_pin_memory=False, report_to=[], logging_strategy="no", disable_tqdm=True,
        save_strategy="steps" if save_every else "no", save_steps=save_every or NEVER, save_total_limit=KEEP,
    )  # fmt: skip

    def collate(rows: Any) -> dict[str, torch.Tensor]:
        x, y = zip(*rows, strict=True)
        return {"x": torch.stack(x), "y": torch.stack(y)}

    torch.manual_seed(0)
    trainer = Trainer(model=TimedModel(clock), args=arguments, train_dataset=data(clock), data_collator=collate)
    trainer.train(resume_from_checkpoint=resume or None)


def lightning(clock: Clock, folder: Path, *, save_every: int | None, resume: bool) -> None:
    """Train with the Trainer of Lightning, without output."""
    from lightning.pytorch import LightningModule, Trainer, seed_everything
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.timed = TimedModel(clock)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.timed(*batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=RATE)

    seed_everything(0, verbose=False)
    saves = ModelCheckpoint(folder, every_n_train_steps=save_every, save_top_k=-1) if save_every else None
    trainer = Trainer(
        accelerator="cpu", max_steps=NEVER, max_epochs=-1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[saves] if saves else [], enable_checkpointing=saves is not None,
    )  # fmt: skip
    newest = max(folder.glob("*.ckpt"), key=lambda path: path.stat().st_mtime) if resume else None
    trainer.fit(Module(), DataLoader(data(clock), batch_size=BATCH, shuffle=True), ckpt_path=newest)


CONTENDERS: dict[str, Callable[..., None]] = {
    "plain": plain,
    "shoestring": shoestring,
    "Hugging Face Trainer": hugging_face,
    "Lightning Trainer": lightning,
}
CHECKPOINTS = {
    "plain": "checkpoint.pt",
    "shoestring": "checkpoints/update-*",
    "Hugging Face Trainer": "checkpoint-*",
    "Lightning Trainer": "*.ckpt",
}
"""The path pattern of each contender's checkpoints in its folder."""


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # For all contenders, as in the engine; in this benchmark these are the same kernels.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    question = json.loads(sys.argv[1])
    CONTENDERS[question["name"]](
        Clock(question),
        Path(question["folder"]),
        save_every=question.get("save_every"),
        resume=question.get("resume", False),
    )
