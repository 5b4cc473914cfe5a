"""A LightningModule as a recipe, without Lightning's Trainer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.utils.data import default_collate

from shoestring.data.generators import preserved_generators
from shoestring.data.seeding import derive, seed_host
from shoestring.errors import UsageError
from shoestring.recipe.contract import updates_per_epoch
from shoestring.recipe.inputs import Input
from shoestring.recipe.lightning import is_data_module, overrides
from shoestring.recipe.optimizers import BuiltOptimizer, read_optimizer
from shoestring.recipes.lightning import arguments, evaluation, hooks, loaders, metrics, prediction
from shoestring.recipes.lightning.trainer import Position, Trainer
from shoestring.techniques import trees

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
            has_data = loaders.defines(self._data_source(), "train")
            return (self._part("train").collate if has_data else default_collate)(list(samples))
        part = samples[0].part
        return loaders.PartBatch(part, self._part(part).collate([sample.value for sample in samples]))

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
        result = evaluation.call_step(module, "training_step", batch, stage.batch_index)
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

    def evaluate(self, model: nn.Module, batches: Iterable[loaders.PartBatch]) -> dict[str, Any]:
        """Return what the module logs in `validation_step` or `test_step`, and a `loss`."""
        with_loss = self.best == evaluation.BEST
        return evaluation.evaluate(self._module(model), self.data_module, batches, self.loss if with_loss else None)

    def predict(self, model: nn.Module, batch: Any) -> Any:
        """Return what `predict_step` returns, by sample."""
        return prediction.predict(self._module(model), self.data_module, batch)

    def inputs(self, source: Any) -> Iterator[Input]:
        """Yield the samples of `predict_dataloader`, or of all parts of the data; or the members of a list."""
        if isinstance(source, list):
            yield from (Input(load=partial(_identity, sample)) for sample in source)
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
            samples = round(self.subset * samples) if self.subset <= 1 else round(self.subset)
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

    def _part(self, part: str) -> loaders.Part:
        if part not in self._parts:
            source = self._data_source()
            if not loaders.defines(source, part):
                raise UsageError(
                    f"{self._kind.__name__} has no data: it has no {part}_dataloader",
                    hint="write train_dataloader() into the module, or a LightningDataModule into its file; from "
                    "Python use shoestring.recipes.lightning.recipe(module, data_module)",
                )
            with preserved_generators():
                seed_host(derive(self.seed, "data", loaders.STAGES[part]))
                if not self._parts:
                    source.prepare_data()
                if not any(loaders.STAGES[loaded] == loaders.STAGES[part] for loaded in self._parts):
                    source.setup(loaders.STAGES[part])
                self._parts[part] = loaders.read(source, part)
        return self._parts[part]


def _identity(sample: Any) -> Any:
    return sample


def recipe(module: Any, data_module: Any = None) -> LightningRecipe:
    """Return the recipe of a LightningModule that exists, with its weights as the initial ones."""
    source = data_module if data_module is not None else module
    live = LightningRecipe(lambda _: copy.deepcopy(module), lambda _: source, type(module))
    if loaders.defines(source, "train"):
        live.effective_batch = live.loader_batch_size
    return live


def recipe_class(kind: type, neighbours: Iterable[object] = ()) -> type[LightningRecipe]:
    """Return the recipe class of a LightningModule, whose options are its constructor's arguments.

    If it has no dataloaders and the `neighbours` have exactly one LightningDataModule, the data is that one's.
    """
    data_kind = kind
    if not overrides(kind, "train_dataloader"):
        candidates: list[Any] = [item for item in neighbours if is_data_module(item)]
        data_kind = candidates[0] if len(candidates) == 1 else kind
    kinds = list(dict.fromkeys((kind, data_kind)))
    options_type = arguments.make_options(kinds)

    class Recipe(LightningRecipe):
        __doc__ = kind.__doc__ if kind.__doc__ != kind.__mro__[1].__doc__ else f"The LightningModule {kind.__name__}."
        Options: ClassVar[type] = options_type

        def __init__(self, options: Any = None) -> None:
            self.options = options if options is not None else options_type()
            values = vars(self.options)
            super().__init__(
                lambda effective_batch: arguments.call(kind, values, effective_batch),
                lambda effective_batch: arguments.call(data_kind, values, effective_batch),
                kind,
            )

    Recipe.__name__ = Recipe.__qualname__ = kind.__name__
    size = _batch_size(Recipe, kinds)
    Recipe.assumes_batch_size = size is None
    Recipe.effective_batch = size or LightningRecipe.effective_batch
    return Recipe


def _batch_size(recipe: type[Any], kinds: Iterable[type]) -> int | None:
    """Return the default of the argument `batch_size`, or else the batch size of the dataloader; None if unknown."""
    for kind in kinds:
        parameter = arguments.arguments_of(kind).get(arguments.BATCH_SIZE)
        if parameter and isinstance(parameter.default, int):
            return parameter.default
    try:
        size: int = recipe().loader_batch_size
    except Exception:  # noqa: BLE001  (the user's code raises anything)
        # The data may need an option that is not set yet. What is wrong is reported when it is used.
        return None
    return size
