"""A recipe's options: its own and those of every recipe; and a recipe loaded with values for its options."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal

from shoestring.base import config
from shoestring.base.errors import UsageError
from shoestring.base.failures import recipe_errors
from shoestring.base.json_values import NotJsonError, encode
from shoestring.recipe.absent_data import AbsentData, Lengths, samples_of
from shoestring.recipe.contract import datasets, require_real_data, updates_per_epoch
from shoestring.recipe.dataset_paths import DatasetPath
from shoestring.recipe.folds import Fold, FoldOption, divide
from shoestring.recipe.installed import Package
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


@dataclass(frozen=True, kw_only=True)
class Adaptation:
    """Options that adapt any recipe's model and optimizer after they are built. They change the training result, so by
    default nothing is adapted. If a recipe has its own option of the same name, the recipe implements it.
    """

    lora_r: Annotated[int | None, "rank of LoRA adapters; none trains every weight"] = None
    """The adapters are those of peft. The weights to use, in `best/` and `light/`, are then a folder with a peft
    adapter."""
    lora_alpha: Annotated[int | None, "LoRA's scale times its rank; by default twice the rank"] = None
    lora_targets: Annotated[
        str,
        "modules with adapters: attention, mlp, linear (every linear layer but the head), or a comma-separated list of "
        "name endings",
    ] = "attention"
    lora_experts: Annotated[
        Literal["yes", "no", "peft"],
        "adapters for a mixture's experts that are stacked in one parameter, where lora_targets names them (mlp, "
        "linear, name endings); peft: what peft makes of the names of linear layers",
    ] = "yes"
    """An adapter of stacked experts is added to their weights in each forward, which takes the memory of one block's
    experts, and keeps them for backward unless there is activation checkpointing. `peft` is what runs of earlier
    versions have: their adapters keep their names."""
    lora_dropout: Annotated[float, "dropout of the adapters' inputs"] = 0.0
    lora_rslora: Annotated[bool, "LoRA's scale divided by the square root of the rank, not by the rank (rsLoRA)"] = (
        False
    )
    lora_dora: Annotated[bool, "adapters that also learn the norm of each output of a layer (DoRA)"] = False
    lora_dtype: Annotated[
        Literal["fp32", "bf16"], "type of the adapters, and so of their gradients and optimizer states"
    ] = "fp32"
    """bf16 has half the bytes and 8 bits of precision. It cannot be trained with `precision=fp16`: the loss scaler of
    torch does not take gradients in bf16 on a GPU."""
    quantization: Annotated[Literal["none", "nf4"], "frozen weights in 4 bits, packed by bitsandbytes"] = "none"
    """4-bit weights are not trained, so `lora_r` has to be set."""
    unquantized: Annotated[
        Literal["fp32", "own"],
        "type of what stays unpacked beside 4-bit weights (norms, embeddings, head): fp32, or own: that of `weights`",
    ] = "fp32"
    """fp32 is what peft's `prepare_model_for_kbit_training` does. With own the activations between the layers take half
    the bytes where `weights` is a 16-bit type."""
    double_quantization: Annotated[bool, "scales of 4-bit weights in 8 bits"] = False
    weights: Annotated[
        Literal["auto", "fp32", "fp16", "bf16"],
        "type of the stored weights, independent of autocast; auto: 16 bits for the frozen weights of LoRA on a GPU, "
        "else fp32",
    ] = "fp32"
    optimizer_states: Annotated[
        Literal["own", "8bit", "paged", "paged_8bit"],
        "the optimizer's own states, or those of bitsandbytes' AdamW: in 8 bits, paged to host memory, or both",
    ] = "own"
    """The states of bitsandbytes need the extra `bitsandbytes`."""

    def __post_init__(self) -> None:
        problems = config.too_small(vars(self), {"lora_r": 1, "lora_alpha": 1})
        if not 0 <= self.lora_dropout < 1:
            problems.append(f"lora_dropout={self.lora_dropout}: must be at least 0 and less than 1")
        if self.quantization != "none" and self.lora_r is None:
            problems.append("quantization=nf4: 4-bit weights cannot be trained, so LoRA adapters are needed (lora.r)")
        if problems:
            raise UsageError("the model cannot be adapted", problems=problems, hint="for example --set lora.r=8")


_ADAPTER_OPTIONS = (
    *("lora_r", "lora_alpha", "lora_targets", "lora_experts", "lora_dropout", "lora_rslora", "lora_dora", "lora_dtype"),
    *("quantization", "unquantized", "double_quantization"),
)
"""Hidden for a recipe with its own option `lora_r`, which adds its adapters itself."""

BEFORE: Mapping[str, str] = {"lora_experts": "peft"}
"""The options that did not exist when some runs were stored, with the values by which these runs stay as they are."""

_NEWER = ("max_updates", "ema")
"""Options whose names a recipe may have used for a method or a model of its own before they were options."""

_MOST_SAMPLES = 2**31 - 1
"""In one update: more than any dataset has."""


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


def _require_dataclass(recipe: object) -> None:
    """Raise UsageError if the recipe has `options` that are not an instance of a dataclass, or does not take them."""
    options = getattr(recipe, "options", None)
    if options is None:
        return
    name, kind = type(recipe).__name__, type(options)
    if isinstance(options, type):
        raise UsageError(
            f"the options of {name} are the class {options.__name__}, not an instance of it",
            hint=f"write options = {options.__name__}()",
        )
    if not dataclasses.is_dataclass(options):
        raise UsageError(
            f"the options of {name} are of the type {kind.__module__}.{kind.__name__}, not an instance of a dataclass",
            hint="--set needs the names, types and defaults of a frozen dataclass: give those values that --set may "
            "change as its fields, and build the configuration from them in model() and data(). Or call the attribute "
            "otherwise, such as `config`: then the recipe has only the options that every recipe has",
        )
    try:
        inspect.signature(type(recipe)).bind(options)
    except TypeError as error:
        raise UsageError(
            f"{name}(options) is not possible: {error}",
            hint="let its __init__ take the options: def __init__(self, options=Options()): self.options = options",
        ) from error
    except ValueError:  # a class without a signature
        return


def _with_defaults(loaded: LoadedRecipe) -> LoadedRecipe:
    recipe = loaded.recipe
    _require_dataclass(recipe)
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


def _absent_problems(values: Mapping[str, Any], own: Mapping[str, config.Field]) -> list[str]:
    """Return the problems of the options of `AbsentData` that the recipe does not have itself."""
    absent = {name: values.get(name) for name in config.fields(AbsentData) if name not in own}
    names = [name for name, value in absent.items() if value is not None]
    problems = config.too_small({"rows": None, "row_tokens": None} | absent, {"rows": 2, "row_tokens": 1})
    if names and values.get("data") is not None:
        problems.append(f"{' and '.join(names)}: for data that are not here, but data={values['data']} is set as well")
    if {"row_tokens", "lengths"} <= set(names):
        problems.append("row_tokens and lengths are both the lengths of samples: set one of them")
    return problems


def _fold_problems(recipe: object, text: str | None) -> list[str]:
    """Return the problems of the option `fold` of a recipe without its own."""
    if text is None:
        return []
    own = getattr(recipe, "fold", None)
    if own is not None and not isinstance(own, str):
        return [
            f"fold={text}: the recipe has a `fold` of its own, {own!r:.60}, and would not get this text: make it a "
            "field of the recipe's options (of the type int, from 0, with the number of folds in the field folds)"
        ]
    try:
        Fold.parse(text)
    except ValueError as error:
        return [f"fold={text}: {error}"]
    return []


def _plain(value: Any) -> Any:
    """Return a number of NumPy as one of Python."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


def _require_plain(loaded: LoadedRecipe, values: Mapping[str, Any]) -> None:
    """Raise UsageError for values that the plan of a run cannot store, or would not read again as they are."""
    kinds = (NoneType, bool, int, float, str, Path)
    problems = []
    for name, value in values.items():
        try:
            is_same = isinstance(value, Path) or (isinstance(value, kinds) and encode(value) == value)
        except NotJsonError:
            is_same = False
        if not is_same:
            problems.append(f"{name} is {value!r:.100} of type {type(value).__name__}")
    if problems:
        raise UsageError(
            f"options of {loaded.name} cannot be used: the plan of a run could not store them",
            problems=problems,
            hint="an option is a text, a finite number, true or false, a path or None; make other values of it where "
            "they are needed, such as a date of a text",
        )


def _replace_options(loaded: LoadedRecipe, values: dict[str, Any]) -> LoadedRecipe:
    values = {name: _plain(value) for name, value in values.items()}
    _require_plain(loaded, values)
    problems = config.too_small(values, {"epochs": 1, "effective_batch": 1, "seed": 0})
    own = own_fields(loaded)
    if "max_updates" not in own:
        problems += config.too_small(values, {"max_updates": 1})
    if "ema" not in own and values["ema"] is not None and not 0 < values["ema"] < 1:
        problems.append(f"ema={values['ema']}: must be more than 0 and less than 1, such as 0.999")
    problems += _absent_problems(values, own)
    if "fold" not in own:
        problems += _fold_problems(loaded.recipe, values.get("fold"))
    if values["effective_batch"] > _MOST_SAMPLES:
        problems.append(f"effective_batch={values['effective_batch']}: must be at most {_MOST_SAMPLES}")
    if problems:
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
