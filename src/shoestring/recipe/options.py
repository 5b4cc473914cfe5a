"""A recipe's options: its own and those of every recipe; and a recipe loaded with values for its options."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from shoestring.base import config
from shoestring.base.errors import UsageError
from shoestring.base.failures import recipe_errors
from shoestring.recipe.absent_data import AbsentData, Lengths, samples_of
from shoestring.recipe.adaptation import Adaptation
from shoestring.recipe.contract import datasets, require_real_data, updates_per_epoch
from shoestring.recipe.dataset_paths import DatasetPath
from shoestring.recipe.folds import Fold, FoldOption, divide
from shoestring.recipe.installed import Package
from shoestring.recipe.option_checks import find_problems, plain, require_dataclass, require_plain
from shoestring.recipe.parts import Parts
from shoestring.recipe.source import RecipeSource
from shoestring.recipe.subset import Subset, choose_subset, require_subset


@dataclass(frozen=True, kw_only=True)
class Common:
    """The options of every recipe. A recipe changes a default with a field or attribute of the same name."""

    epochs: Annotated[int, "passes over the training data"] = 1
    effective_batch: Annotated[int, "samples in one update"] = 32
    seed: Annotated[int, "decides initialization, sample order, dropout and augmentation"] = 0
    subset: Annotated[float | None, "part of the training data, as a share (at most 1) or a count; none: all"] = None
    """The samples are stratified by label if the recipe has labels, and are the same ones in every session."""
    max_updates: Annotated[int | None, "the run ends after this many updates if its epochs have more; none: no end"] = (
        None
    )
    """Schedules, plans and library trainers see this total. The last epoch, which may be cut, is evaluated as others
    are."""
    ema: Annotated[
        float | None,
        "decay of an exponential moving average of the weights, such as 0.999, which is evaluated and saved for use; "
        "none: no average",
    ] = None
    """The average is evaluated, saved in `best/` and `light/`, and used by `evaluate`, `predict` and `export` of any of
    the run's weights."""


_ADAPTER_OPTIONS = (
    *("lora_r", "lora_alpha", "lora_targets", "lora_experts", "lora_dropout", "lora_rslora", "lora_dora", "lora_dtype"),
    *("quantization", "unquantized", "double_quantization"),
)
"""Hidden for a recipe with its own option `lora_r`, which adds its adapters itself."""

BEFORE: Mapping[str, str] = {"lora_experts": "peft"}
"""The options that did not exist when some runs were stored, with the values by which these runs stay as they are."""

_NEWER = ("max_updates", "ema")
"""Options whose names a recipe may have used for a method or a model of its own before they were options."""


@dataclass(frozen=True, kw_only=True)
class LoadedRecipe:
    """A recipe with values for its options, and the reference to load the same recipe again."""

    name: str
    """`temporal`, `my.py`, `my.py:Mine`, or the class of a live object, which exists only in this process."""
    is_live: bool = False
    """Whether the recipe is a live object."""
    source: RecipeSource | None = None
    """The file of the user's own recipe."""
    package: Package | None = None
    """The installed package that has the recipe under this name."""
    recipe: Any
    options: Mapping[str, Any]
    """The value of every option, including `epochs`, `effective_batch` and `seed`."""
    in_datasets: Mapping[str, DatasetPath] = field(default_factory=dict)
    """The options that are paths in datasets of Kaggle, which only its sessions have. They are not among `options`."""

    @property
    def is_built_in(self) -> bool:
        return self.package is not None and self.package.is_built_in

    @property
    def foreign_package(self) -> Package | None:
        """The package of a recipe that is neither built-in nor a file: another version of it is another recipe."""
        return None if self.is_built_in else self.package

    @property
    def path(self) -> Path | None:
        """The file of the user's own recipe."""
        return self.source.path if self.source else None

    @property
    def digest(self) -> str:
        """The SHA-256 of that file: a changed recipe is another recipe. Empty without a file."""
        return self.source.digest if self.source else ""

    @property
    def imports(self) -> dict[str, str]:
        """The SHA-256 of each file beside the recipe's file that it imports, by relative path."""
        return self.source.imports if self.source else {}

    @cached_property
    def parts(self) -> Parts:
        """The recipe's optional parts."""
        return Parts.from_recipe(self.recipe)

    @property
    def epochs(self) -> int:
        """The number of epochs of the whole run."""
        return int(self.options["epochs"]) * self.parts.learning.phases

    @property
    def effective_batch(self) -> int:
        return int(self.options["effective_batch"])

    def evaluation_size(self, micro_batch: int) -> int:
        """Return how many samples an evaluation first processes at once, if updates have this microbatch."""
        return self.parts.evaluation_size(self.effective_batch if self.parts.learning.whole_batch else micro_batch)

    @property
    def seed(self) -> int:
        return int(self.options["seed"])

    @property
    def max_updates(self) -> int | None:
        """The largest number of updates; None without a limit, or if the recipe has its own option of this name."""
        return None if "max_updates" in own_fields(self) else self.options["max_updates"]

    @property
    def ema(self) -> float | None:
        """The decay of the averaged weights; None without an average, or if the recipe has its own such option."""
        return None if "ema" in own_fields(self) else self.options["ema"]

    def updates_per_epoch(self, samples: int) -> int:
        """Return the number of updates in an epoch of so many training samples."""
        count = self.parts.learning.count_updates
        return updates_per_epoch(samples, self.effective_batch) if count is None else count(samples)

    def total_updates(self, updates_per_epoch: int) -> int:
        """Return the number of updates of the whole run."""
        total = self.epochs * updates_per_epoch
        return total if self.max_updates is None else min(total, self.max_updates)

    @property
    def adaptation(self) -> Adaptation:
        """The adaptations of the model and optimizer, without those that the recipe implements itself."""
        names = _adaptation_fields(self)
        return Adaptation(**{name: self.options[name] for name in names if name in self.options})

    @property
    def absent_data(self) -> AbsentData | None:
        """The options that stand for data which are not here; None for a run, and for a plan of its own data."""
        own = own_fields(self)
        values = {name: self.options.get(name) for name in config.fields(AbsentData) if name not in own}
        return AbsentData(**values) if any(value is not None for value in values.values()) else None

    @property
    def has_placeholder_data(self) -> bool:
        """Whether there is nothing to train on: the samples have sizes, but no content."""
        return self.parts.data.has_placeholder_data or self.absent_data is not None

    def require_real_data(self) -> None:
        """Raise UsageError if the recipe cannot be trained: without data, or with options that stand for them."""
        if self.absent_data is not None:
            names = ", ".join(name for name, value in vars(self.absent_data).items() if value is not None)
            raise UsageError(
                f"{self.name} has nothing to train on: {names} stand in plans for data that are not here",
                hint=f"leave out {names}; the recipe then trains on its data",
            )
        require_real_data(self.recipe)

    @cached_property
    def lengths(self) -> Lengths | None:
        """The lengths of data that are not here; None if no file has them.

        Raises UsageError if the file cannot be read, or has lengths in another unit than the recipe's.
        """
        absent = self.absent_data
        if absent is None or absent.lengths is None:
            return None
        lengths, unit = Lengths.read(absent.lengths), self.parts.data.length_unit
        if lengths.unit != unit:
            raise UsageError(
                f"lengths={absent.lengths}: has lengths in {lengths.unit}, but those of {self.name} are in {unit}",
                hint=f"write it with this recipe: shoestring check {self.name} --set data=PATH --lengths FILE",
            )
        return lengths

    @property
    def fold(self) -> Fold | None:
        """The fold that the engine holds out; None without one, or if the recipe divides its data itself."""
        text = None if "fold" in own_fields(self) or hasattr(self.recipe, "fold") else self.options.get("fold")
        return None if text is None else Fold.parse(text)

    def absent_samples(self) -> dict[str, int]:
        """Return the number of samples in each part of data that are not here, with those of a `subset` and a `fold`.

        Raises UsageError as `lengths` does, and for a subset of more samples than there are.
        """
        assert self.absent_data
        parts = self.parts
        samples = samples_of(
            self.absent_data, self.lengths, shares=parts.data.part_shares, samples_per_row=parts.data.samples_per_row
        )
        subset = None if "subset" in own_fields(self) else self.options["subset"]
        if subset is not None:
            samples = {**samples, "train": require_subset(samples["train"], subset)}
        if self.fold is not None:
            held_out = samples["train"] // self.fold.count
            samples = {**samples, "train": samples["train"] - held_out, "validation": held_out}
        return samples

    def data(self) -> dict[str, Any]:
        """Return what `datasets` returns, with the training data reduced to the `subset` option, and divided by `fold`.

        Raises UsageError as `choose_subset` and `divide` do.
        """
        parts = datasets(self.recipe)
        subset = None if "subset" in own_fields(self) else self.options["subset"]
        fold, dataset = self.fold, parts["train"]
        if subset is None and fold is None:
            return parts
        of_data = self.parts.data
        label, group = _by_index(of_data.label, dataset), _by_index(of_data.group, dataset)
        indices: Sequence[int] = range(len(dataset))
        if subset is not None:
            indices = choose_subset(len(dataset), subset, seed=self.seed, label=label)
        if fold is None:
            return {**parts, "train": Subset(dataset, indices)}
        return divide(parts, fold, indices=indices, label=label, group=group, unaugmented=of_data.unaugmented)

    @property
    def reference(self) -> str:
        """The reference that `load` accepts from any working directory; empty for a live object."""
        if self.is_live:
            return ""
        if not self.path:
            return self.name
        return f"{self.path}:{self.name.partition(':')[2]}" if ":" in self.name else str(self.path)

    @property
    def paths(self) -> dict[str, Path]:
        """The options that are paths, which may differ from one machine to another."""
        return {name: value for name, value in self.options.items() if isinstance(value, Path)}

    def replace(self, **options: Any) -> LoadedRecipe:
        """Return the recipe with changed options."""
        return _replace_options(self, {**self.options, **options})


def _by_index(part: Callable[[Any, int], Any] | None, dataset: Any) -> Callable[[int], Hashable] | None:
    """Return a part such as `label(dataset, index)` as a function of the index alone."""
    return None if part is None else lambda index: part(dataset, index)


def option_fields(loaded: LoadedRecipe) -> dict[str, config.Field]:
    """Return the recipe's options: its own, then those of `Common`, `FoldOption`, `AbsentData` and `Adaptation` that it
    does not replace."""
    own = own_fields(loaded)
    common = {
        name: field
        for owner in (Common, FoldOption, AbsentData)
        for name, field in config.fields(owner).items()
        if name not in own
    }
    return {**own, **common, **_adaptation_fields(loaded)}


def own_fields(loaded: LoadedRecipe) -> dict[str, config.Field]:
    """Return the fields of the recipe's `options`, or {} if it has none."""
    options = getattr(loaded.recipe, "options", None)
    return {} if options is None else config.fields(type(options))


def _adaptation_fields(loaded: LoadedRecipe) -> dict[str, config.Field]:
    own = own_fields(loaded).keys()
    hidden = own | _ADAPTER_OPTIONS if "lora_r" in own else own
    return {name: field for name, field in config.fields(Adaptation).items() if name not in hidden}


def with_defaults(
    recipe: object,
    name: str,
    *,
    source: RecipeSource | None = None,
    package: Package | None = None,
    is_live: bool = False,
) -> LoadedRecipe:
    """Return a recipe, or the recipe made by a class, with its default options.

    Raises UsageError if the recipe's own code raises an exception.
    """
    with recipe_errors(f"{name} could not be made with its default options"):
        if isinstance(recipe, type):
            recipe = recipe()
        return _with_defaults(
            LoadedRecipe(name=name, is_live=is_live, source=source, package=package, recipe=recipe, options={})
        )


def _with_defaults(loaded: LoadedRecipe) -> LoadedRecipe:
    recipe = loaded.recipe
    require_dataclass(recipe)
    own, adaptation_fields = own_fields(loaded), _adaptation_fields(loaded)
    without_default = {*config.fields(AbsentData), *config.fields(FoldOption)}

    def default(field: config.Field) -> Any:
        options = getattr(recipe, "options", recipe)
        if field.name in own:
            return getattr(options, field.name)
        # A plain recipe's attribute `weights` is not the option of that name.
        if field.name in without_default:
            return None
        if field.name in adaptation_fields:
            return loaded.parts.learning.adaptation_defaults.get(field.name, field.default)
        owners = (options, recipe)
        return next((getattr(owner, field.name) for owner in owners if _is_option(owner, field.name)), field.default)

    return _replace_options(loaded, {field.name: default(field) for field in option_fields(loaded).values()})


def _is_option(recipe: object, name: str) -> bool:
    """Return whether the recipe has an attribute that is a value of the option of that name."""
    return hasattr(recipe, name) and (name not in _NEWER or isinstance(getattr(recipe, name), int | float | None))


def size_defaults(loaded: LoadedRecipe, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the defaults of a run that has only a `size`: the entry of it in the recipe's `options.by_size`.

    They belong to the recipe's own data and to one length of a run: there are none if `values` have others.
    """
    if values.keys() & {"data", "epochs", "max_updates", "subset", "rows", "lengths"}:
        return {}
    by_size: Mapping[object, Mapping[str, Any]] = getattr(getattr(loaded.recipe, "options", None), "by_size", {})
    return by_size.get(values.get("size"), {})


def _replace_options(loaded: LoadedRecipe, values: dict[str, Any]) -> LoadedRecipe:
    values = {name: plain(value) for name, value in values.items()}
    require_plain(loaded.name, values)
    if problems := find_problems(loaded.recipe, values, own_fields(loaded)):
        raise UsageError(f"options of {loaded.name} cannot be used", problems=problems)
    options = getattr(loaded.recipe, "options", None)
    if options is not None:
        own = {field.name: values[field.name] for field in dataclasses.fields(options)}
        recipe = type(loaded.recipe)(dataclasses.replace(options, **own))
        names = set(values) - set(own)
    else:
        recipe, names = copy.copy(loaded.recipe), set(values)
    if "fold" in names and values["fold"] is not None and hasattr(recipe, "fold"):
        recipe.fold = values["fold"]  # which divides its data itself
    for name in (
        names - set(_adaptation_fields(loaded)) - set(config.fields(AbsentData)) - set(config.fields(FoldOption))
    ):
        if _is_option(recipe, name):
            # The recipe's methods may read the option: a schedule may read the epochs.
            setattr(recipe, name, values[name])
    result = dataclasses.replace(loaded, recipe=recipe, options=values)
    _ = result.adaptation  # raises UsageError if the adaptation is not possible
    return result
