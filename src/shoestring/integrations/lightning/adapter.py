"""The recipe of a LightningModule: its methods call those of the module, as Lightning's Trainer would."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import default_collate

from shoestring.base.errors import UsageError
from shoestring.integrations.lightning import evaluation, hooks, loaders, metrics, prediction
from shoestring.integrations.lightning.trainer import Position, Trainer
from shoestring.recipe.contract import updates_per_epoch
from shoestring.recipe.inputs import Input
from shoestring.recipe.lightning import is_data_module, overrides
from shoestring.recipe.optimizers import BuiltOptimizer, read_optimizer
from shoestring.recipe.subset import subset_count
from shoestring.techniques import trees
from shoestring.training.data.generators import preserved_generators
from shoestring.training.data.seeding import derive, seed_host

if TYPE_CHECKING:
    from torch import Tensor, nn

_TRAINER_ARGUMENTS: dict[str, type | tuple[type, ...]] = {
    "epochs": int,
    "clip_norm": (int, float),
    "best": tuple,
    "patience": int,
}
"""Attributes of a LightningModule's class that say what the Trainer's arguments and callbacks do, with their types."""

_START = Position()

_SAMPLES = 4
"""The number of samples that `batch` repeats."""


class LightningRecipe:
    """The recipe of a LightningModule, which may take its data from a LightningDataModule."""

    epochs: int = 1
    seed: int = 0
    effective_batch: int = 32
    assumes_batch_size: bool = False
    """Whether this default is not that of the dataloader, which could not be read without options."""
    subset: float | None = None
    max_updates: int | None = None
    best: tuple[str, str] = evaluation.BEST

    def __init__(self, make: Callable[[int], Any], make_data: Callable[[int], Any], kind: type) -> None:
        """`make` and `make_data` return the LightningModule and the source of the data for an effective batch."""
        self._make, self._make_data, self._kind = make, make_data, kind
        self._source: Any = None
        self._parts: dict[str, loaders.Part] = {}
        self._position_names = hooks.position_names(kind)
        for name, types in _TRAINER_ARGUMENTS.items():
            value = getattr(kind, name, None)
            if isinstance(value, types) and not isinstance(value, bool):
                setattr(self, name, value)

    def model(self) -> nn.Module:
        """Return a new LightningModule, set up as before `Trainer.fit`."""
        module = self._make(self.effective_batch)
        hooks.require_usable(module)
        Trainer(self).attach(module)
        if overrides(self._kind, "setup"):
            module.setup("fit")
        if overrides(self._kind, "configure_model"):
            module.configure_model()
        model: nn.Module = module
        return model

    def data(self) -> dict[str, Any]:
        """Return the datasets of the dataloaders; those of an evaluation only if the module has a step for it."""
        parts = {"train": self._part("train").dataset}
        for part in ("validation", "test"):
            if loaders.defines(self._data_source(), part) and overrides(self._kind, f"{part}_step"):
                parts[part] = loaders.Samples(self._part(part).dataset, part)
        return parts

    def collate(self, samples: Sequence[Any]) -> Any:
        """Return a batch, made by the collate function of the samples' own dataloader."""
        if not isinstance(samples[0], loaders.Sample):
            return self._collate_function("train")(list(samples))
        part = samples[0].part
        return loaders.PartBatch(part, self._collate_function(part)([sample.value for sample in samples]))

    evaluation_collate = collate

    def batch(self, size: int) -> Any:
        """Return the first samples of the training data, repeated."""
        with preserved_generators():
            seed_host(derive(self.seed, "batch"))
            return self.collate(loaders.repeated(self._part("train").dataset, size, _SAMPLES))

    def loss(self, model: nn.Module, batch: Any, *, stage: Position = _START) -> Tensor:
        """Return the loss of `training_step`."""
        module = self._module(model)
        trainer: Trainer = module._trainer
        trainer.position = stage
        if isinstance(batch, loaders.PartBatch):
            batch = batch.value
        tensors = [leaf for leaf in trees.leaves(batch) if isinstance(leaf, torch.Tensor)]
        if metrics.is_traced(tensors):
            evaluation.prepare_trace(module, tensors)
        batch = evaluation.transferred(self.data_module or module, batch)
        result = evaluation.call(module, "training_step", batch, stage.batch_index)
        metrics.reset(module)
        loss = result.get("loss") if isinstance(result, Mapping) else result
        if loss is None:
            raise UsageError(
                f"{self._kind.__name__}.training_step returned no loss",
                problems=["an update without one of its batches would be another update"],
                hint="return a scalar tensor, or a dict with the key 'loss'; for a batch that has no loss return zero "
                "as a function of the output: (output * 0).sum()",
            )
        tensor: Tensor = loss
        return tensor

    def stage(self, update: int, updates_per_epoch: int, total_updates: int) -> Position:  # noqa: ARG002
        """Return the update's place in the run, as far as the module reads it: a CUDA graph is made for each."""
        epoch, index = divmod(update, updates_per_epoch)
        return Position(
            epoch=epoch if "current_epoch" in self._position_names else 0,
            batch_index=index if "batch_idx" in self._position_names else 0,
            update=update if "global_step" in self._position_names else 0,
        )

    def optimizer(self, model: nn.Module) -> BuiltOptimizer:
        """Return the optimizer and the schedulers of `configure_optimizers`."""
        module = self._module(model)
        built = read_optimizer(module.configure_optimizers(), f"{self._kind.__name__}.configure_optimizers")
        module._trainer.optimizers = [built.optimizer]
        return built

    def evaluate(self, model: nn.Module, batches: Iterable[Any]) -> dict[str, Any]:
        """Return what the module logs in `validation_step` or `test_step`, and a `loss`.

        Training data, which are evaluated where there are no others, are evaluated by `validation_step`.
        """
        with_loss = self.best == evaluation.BEST
        return evaluation.evaluate(self._module(model), self.data_module, batches, self.loss if with_loss else None)

    def predict(self, model: nn.Module, batch: Any) -> Any:
        """Return what `predict_step` returns, by sample."""
        return prediction.predict(self._module(model), self.data_module, batch)

    def inputs(self, source: Any) -> Iterator[Any]:
        """Yield the samples of `predict_dataloader`, or of all parts of the data; or the members of a list."""
        if isinstance(source, list):
            yield from source  # samples
            return
        for part in ["predict"] if loaders.defines(self._data_source(), "predict") else list(self.data()):
            samples = loaders.Samples(self._part(part).dataset, part)
            yield from (Input(load=partial(samples.__getitem__, index)) for index in range(len(samples)))

    def whole(self) -> Any:
        """Return all data, evaluated by `validation_step`."""
        parts = [self._part(part).dataset for part in self.data()]
        whole: Any = torch.utils.data.ConcatDataset(parts)
        return loaders.Samples(whole, "validation")

    def notes(self) -> list[str]:
        """Return what of the module is not used."""
        notes = [note for part in self._parts.values() for note in part.notes]
        if self.assumes_batch_size and self.loader_batch_size != self.effective_batch:
            notes.append(
                f"an update has {self.effective_batch} samples, a batch of train_dataloader {self.loader_batch_size}: "
                f"--set effective_batch={self.loader_batch_size} makes them equal"
            )
        names = hooks.unused(self._kind)
        if self.data_module:
            names += [f"{type(self.data_module).__name__}.{name}" for name in hooks.unused(type(self.data_module))]
        if hooks.logs_training(self._kind):
            names.append("what training_step logs")
        names += [
            f"{loaders.METHODS[part]}, since there is no {part}_step"
            for part in ("validation", "test")
            if not overrides(self._kind, f"{part}_step") and loaders.defines(self._data_source(), part)
        ]
        return [*notes, f"not used of {self._kind.__name__}: {', '.join(names)}"] if names else notes

    @property
    def updates_per_epoch(self) -> int:
        """The number of updates in an epoch, for `self.trainer`."""
        samples = len(self._part("train").dataset)
        if self.subset is not None:
            samples = subset_count(samples, self.subset)
        return updates_per_epoch(samples, self.effective_batch)

    @property
    def total_updates(self) -> int:
        """The number of updates of the run, for `self.trainer`."""
        total = self.epochs * self.updates_per_epoch
        return total if self.max_updates is None else min(total, self.max_updates)

    @property
    def data_module(self) -> Any:
        """The LightningDataModule; None without one."""
        return self._data_source() if is_data_module(type(self._data_source())) else None

    @property
    def loader_batch_size(self) -> int:
        """The batch size of the dataloader of the training data."""
        return self._part("train").batch_size

    def _module(self, model: nn.Module) -> Any:
        """Return the LightningModule, which a library may have put into another module."""
        return next(module for module in model.modules() if isinstance(module, self._kind))

    def _data_source(self) -> Any:
        if self._source is None:
            with preserved_generators():
                seed_host(derive(self.seed, "data"))
                source = self._make_data(self.effective_batch)
                trainer = Trainer(self)
                if is_data_module(type(source)):
                    source.trainer = trainer
                else:
                    trainer.attach(source)
            self._source = source
        return self._source

    def _collate_function(self, part: str) -> Callable[[list[Any]], Any]:
        """Return that of the part's dataloader, or of the training data's if there is none for the part."""
        names = [name for name in (part, "train") if loaders.defines(self._data_source(), name)]
        return self._part(names[0]).collate if names else default_collate

    def _part(self, part: str) -> loaders.Part:
        if part not in self._parts:
            source = self._data_source()
            if not loaders.defines(source, part):
                raise UsageError(
                    f"{self._kind.__name__} has no data: it has no {loaders.METHODS[part]}",
                    hint="write train_dataloader() into the module, or a LightningDataModule into its file; from "
                    "Python use shoestring.integrations.lightning.recipe(module, data_module)",
                )
            with preserved_generators():
                seed_host(derive(self.seed, "data", loaders.STAGES[part]))
                if not self._parts:
                    source.prepare_data()
                if not any(loaders.STAGES[loaded] == loaders.STAGES[part] for loaded in self._parts):
                    source.setup(loaders.STAGES[part])
                self._parts[part] = loaders.read(source, part)
        return self._parts[part]
