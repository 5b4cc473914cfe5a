"""The recipe: what is trained, in a few plain functions that know nothing of the engine.

Three methods are enough to estimate and plan; training also needs `data()`. Nothing is inherited. Everything optional
is used where it is there and has a default where it is not.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias, runtime_checkable

from shoestring import config
from shoestring.errors import QuestionError, nearest
from shoestring.subset import Subset, chosen

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

Batch: TypeAlias = Any  # a tensor, or tuples, lists and dicts of them; first dimension of each: samples

BUILT_IN = {
    "vqa": "shoestring.recipes.vqa:VQA",
    "legal": "shoestring.recipes.legal:Legal",
    "temporal": "shoestring.recipes.temporal:Temporal",
    "chart": "shoestring.recipes.chart:Chart",
    "cloud": "shoestring.recipes.cloud:Cloud",
}

HUGGING_FACE = "hf:"
"""What begins the name of a recipe that a Hugging Face configuration makes."""


@runtime_checkable
class Recipe(Protocol):
    """What is trained.

    Optional parts, each used where the recipe has it:

    - `options`: a frozen dataclass whose fields are what may be chosen; `type(recipe)(options)` must make the recipe
      with others. Without it `epochs`, `effective_batch` and `seed` may be chosen, and attributes of these names are
      their defaults.
    - `data()` -> a map-style dataset (`len` and `[index]`; `__getitems__(indices)` where a whole batch is cheaper),
      or a dict of them: `train`, and as far as there are `validation` and `test`. Training needs it. A dataset with
      `__getitems__`, `nbytes` and `to(device)` -> the same samples there lies on the GPU where it is small. What is
      read from its beginning, in pieces of known counts, is a `shoestring.pieces.Shards`; docs/data.md has the rest.
    - `collate(samples)` -> a batch; by default `torch.utils.data.default_collate`; for sequences of different lengths
      `shoestring.pieces.pad_batch(samples, value)`. Random numbers are drawn in `[index]`, or in `collate` where the
      dataset has no `__getitems__`: there they are the same whoever fetches.
    - `length(dataset, index)` -> how long a sample is, without reading it: those of an update that are about as long
      share a microbatch. What makes up the update stays as it is.
    - `label(dataset, index)` -> what a subset of the training data keeps the shares of.
    - `optimizer(model)` -> a torch optimizer; by default AdamW with `learning_rate` (1e-3).
    - `schedule(update, updates_per_epoch, total_updates)` -> the factor on the optimizer's learning rates for update
      number `update` (from 0); a pure function, so that a resumed run follows the same curve; by default 1.
    - `stage(update, updates_per_epoch, total_updates)` -> what `loss` takes as `stage=` in update number `update` (a
      curriculum's weights, say): a pure function, as `schedule` is. Where the loss is computed for no update of a run,
      in an estimate for one, it is called without.
    - `blocks(model)` -> the modules that activation checkpointing may compute again, the first to be so first; by
      default the layers of transformers' models, or the modules that occur several times in a list.
    - `first_batches(size)` -> how likely the first batch is which share of `batch(size)`, for planning: smaller ones
      that come first cut up memory in which larger ones then find no place. Empty where all are of one shape; by
      default an assumption for sequences of tokens.
    - `clip_norm`: the gradient's largest norm; by default none.
    - `rollout(model, batch)`: what the model does without gradients before an update's first forward, in evaluation
      mode and over all of the update's samples (writing the completions that it then learns from); for planning. An
      iterator that yields after each step what is kept for the next one (a cache of keys and values); of steps that
      are alike the largest is enough.
    - `notes()` -> what a person should know of the data and the model, in whole sentences: rows that were skipped,
      data that are synthetic, weights that are random. Asked for once `data()` and `model()` were called.
    - `evaluate(model, batches)` -> metrics by name, numbers (those to draw) or JSON; by default the mean `loss`.
    - `best`: the metric on the validation data that decides, and whether `"min"` or `"max"` is better; by default
      `("loss", "min")`. `patience`: epochs without a better one after which training stops; by default never.
    """

    def model(self) -> nn.Module:
        """The model on the CPU. Random initialisation draws from torch's generator, seeded by the engine."""

    def batch(self, size: int) -> Batch:
        """The largest batch of `size` samples that can occur, for planning; its values do not matter."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor | tuple[Tensor, Tensor | float]:
        """A mean over the microbatch's samples (a scalar), or the pair (sum, weight).

        The pair is right where samples weigh differently (tokens that are not padding): an update's loss is the sum
        over its microbatches divided by their total weight, however the update was split.
        """


@dataclass(frozen=True, kw_only=True)
class Common:
    """What may be chosen for any recipe. A recipe changes a default by a field or attribute of the same name."""

    epochs: Annotated[int, "passes over the training data"] = 1
    effective_batch: Annotated[int, "samples in one update"] = 32
    seed: Annotated[int, "decides initialisation, sample order, dropout and augmentation"] = 0
    subset: Annotated[float | None, "of the training data: a share (at most 1) or a number of samples; none: all"] = (
        None
    )


@dataclass(frozen=True, kw_only=True)
class Adaptation:
    """What may be done to any recipe's model and optimizer after it has made them. It changes what is learnt, so
    nothing of it is done unless it is set. An option of the recipe's own with such a name is the recipe's affair.
    """

    lora_r: Annotated[int | None, "rank of LoRA adapters; none trains every weight"] = None
    lora_alpha: Annotated[int | None, "LoRA's scale times its rank; by default twice the rank"] = None
    lora_targets: Annotated[str, "modules with adapters, by the ends of their names, with commas between"] = "attention"
    quantization: Annotated[Literal["none", "nf4"], "frozen weights in 4 bits, as bitsandbytes packs them"] = "none"
    double_quantization: Annotated[bool, "4-bit weights' scales in 8 bits"] = False
    weights: Annotated[Literal["fp32", "fp16", "bf16"], "weights as they are stored, apart from autocast"] = "fp32"
    optimizer_states: Annotated[
        Literal["own", "8bit", "paged", "paged_8bit"],
        "the optimizer's own, or AdamW's as bitsandbytes has them: in 8 bits, or swapped out, or both",
    ] = "own"

    def __post_init__(self) -> None:
        problems = config.too_small(vars(self), {"lora_r": 1, "lora_alpha": 1})
        if self.quantization != "none" and self.lora_r is None:
            problems.append("quantization=nf4: 4-bit weights cannot be trained themselves; set lora.r as well")
        if problems:
            raise QuestionError("a model cannot be adapted so", problems=problems, hint="for one, --set lora.r=8")


_OF_ADAPTERS = ("lora_r", "lora_alpha", "lora_targets", "quantization", "double_quantization")
"""A recipe with an option `lora_r` puts its adapters in itself, and into weights that it knows."""


@dataclass(frozen=True, kw_only=True)
class LoadedRecipe:
    """A recipe with its options chosen, and how to find the very same one again."""

    name: str
    """`temporal`, `my.py`, `my.py:Mine`, or the class of an object that only lives in this process."""
    is_live: bool = False
    """Whether it is such an object."""
    path: Path | None
    """The file of a recipe of one's own."""
    digest: str
    """SHA-256 of that file: a changed recipe is another recipe."""
    recipe: Any
    options: Mapping[str, Any]
    """Every option with its chosen value, `epochs`, `effective_batch` and `seed` among them."""

    @property
    def epochs(self) -> int:
        return int(self.options["epochs"])

    @property
    def effective_batch(self) -> int:
        return int(self.options["effective_batch"])

    @property
    def seed(self) -> int:
        return int(self.options["seed"])

    @property
    def adaptation(self) -> Adaptation:
        """What is to be done to its model and optimizer; what the recipe does itself is left out."""
        names = _adaptation_fields(self)
        return Adaptation(**{name: self.options[name] for name in names if name in self.options})

    def data(self) -> dict[str, Any]:
        """As `datasets` says, with the subset of the training data that was chosen."""
        parts = datasets(self.recipe)
        wanted = None if "subset" in _own_fields(self) else self.options["subset"]
        if wanted is None:
            return parts
        whole, label = parts["train"], part(self.recipe, "label", None)
        find_label = None if label is None else lambda index: label(whole, index)
        return {**parts, "train": Subset(whole, chosen(len(whole), wanted, seed=self.seed, label=find_label))}

    @property
    def reference(self) -> str:
        """What `load` finds this recipe by, from any working directory; empty for a live object."""
        if self.is_live:
            return ""
        if not self.path:
            return self.name
        return f"{self.path}:{self.name.partition(':')[2]}" if ":" in self.name else str(self.path)

    @property
    def paths(self) -> dict[str, Path]:
        """The options that say where something lies. Where is not what: another machine has it elsewhere."""
        return {name: value for name, value in self.options.items() if isinstance(value, Path)}

    def replace(self, **options: Any) -> LoadedRecipe:
        """The same recipe with other options."""
        return _with_options(self, {**self.options, **options})


def find(reference: str) -> LoadedRecipe:
    """The recipe a built-in name, `hf:PATH_OR_NAME`, `path/to/file.py` or `path/to/file.py:Class` stands for, with
    default options.

    Running a file runs its code: give only files you would run with Python.

    Raises QuestionError for an unknown name, an unreadable file, and a file with no recipe or several.
    """
    if reference in BUILT_IN:
        module, _, cls = BUILT_IN[reference].partition(":")
        kind = getattr(importlib.import_module(module), cls)
        return _defaults(LoadedRecipe(name=reference, path=None, digest="", recipe=kind, options={}))
    if reference.startswith(HUGGING_FACE):
        return _hugging_face(reference.removeprefix(HUGGING_FACE))
    where, _, wanted = reference.partition(":")
    if not where.endswith(".py"):
        raise QuestionError(
            f"there is no recipe {reference!r}",
            hint=f"{nearest(reference, BUILT_IN)}; a recipe of your own is path/to/file.py, "
            f"a Hugging Face model {HUGGING_FACE}path/to/config.json",
        )
    path = Path(where).resolve()
    kind = _recipe_class(path, wanted)
    return _defaults(
        LoadedRecipe(
            name=f"{path.name}:{wanted}" if wanted else path.name,
            path=path,
            digest=hashlib.sha256(path.read_bytes()).hexdigest(),
            recipe=kind,
            options={},
        )
    )


def built_in() -> list[dict[str, Any]]:
    """The built-in recipes: name, what it is, and its options with defaults, choices and help.

    An option is its `own`, or one that any recipe has.
    """
    return [
        {
            "name": name,
            "summary": (type(found.recipe).__doc__ or "").strip().splitlines()[0],
            "options": [
                {
                    "name": field.name,
                    "default": config.as_json(found.options)[field.name],
                    "expected": field.expected(),
                    "help": field.help,
                    "own": field.name in _own_fields(found),
                }
                for field in option_fields(found).values()
            ],
        }
        for name, found in ((name, find(name)) for name in BUILT_IN)
    ]


def live(recipe: object) -> LoadedRecipe:
    """A recipe that is an object of this process (a class of a notebook, say), with the options it has."""
    missing = _missing(recipe)
    if missing:
        raise QuestionError(
            f"{type(recipe).__name__} is no recipe: it lacks {', '.join(missing)}",
            hint="a recipe has model(), batch(size) and loss(model, batch)",
        )
    return _defaults(
        LoadedRecipe(name=type(recipe).__name__, is_live=True, path=None, digest="", recipe=recipe, options={})
    )


def load(reference: str | object, options: Mapping[str, object]) -> LoadedRecipe:
    """The recipe behind a name, a path or an object, with `options` chosen.

    Raises QuestionError, naming every unknown or unreadable option at once.
    """
    found = find(reference) if isinstance(reference, str) else live(reference)
    return found.replace(**config.read(options, option_fields(found), f"options of {found.name}"))


def option_fields(found: LoadedRecipe) -> dict[str, config.Field]:
    """What may be set for the recipe: its own options, then those of `Common` and `Adaptation` not among them."""
    own = _own_fields(found)
    common = {name: field for name, field in config.fields(Common).items() if name not in own}
    return {**own, **common, **_adaptation_fields(found)}


def _own_fields(found: LoadedRecipe) -> dict[str, config.Field]:
    options = part(found.recipe, "options", None)
    return {} if options is None else config.fields(type(options))


def _adaptation_fields(found: LoadedRecipe) -> dict[str, config.Field]:
    own = _own_fields(found).keys()
    hidden = own | _OF_ADAPTERS if "lora_r" in own else own
    return {name: field for name, field in config.fields(Adaptation).items() if name not in hidden}


def updates_per_epoch(samples: int, effective_batch: int) -> int:
    """How many updates pass over `samples` once.

    The last has the samples that are left. A single one left joins the update before it: a lone sample has no batch
    statistics and a noisy gradient.
    """
    full, rest = divmod(samples, effective_batch)
    joins = rest == 1 and full > 0 and effective_batch > 1
    return full + (rest > 0 and not joins)


def part(recipe: object, name: str, default: Any) -> Any:
    """An optional part of a recipe, or the default."""
    return getattr(recipe, name, default)


def loss_at(recipe: Any, update: int, updates_per_epoch: int, total_updates: int) -> Callable[[nn.Module, Batch], Any]:
    """The recipe's loss as it is in update number `update`: in its stage, where it has stages."""
    stage = part(recipe, "stage", None)
    if stage is None:
        plain: Callable[[nn.Module, Batch], Any] = recipe.loss
        return plain
    return partial(recipe.loss, stage=stage(update, updates_per_epoch, total_updates))


def build_optimizer(recipe: object, model: nn.Module) -> Optimizer:
    """The recipe's optimizer over the model's trainable parameters."""
    make: Callable[[nn.Module], Optimizer] | None = part(recipe, "optimizer", None)
    if make is not None:
        return make(model)
    import torch

    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trainable, lr=part(recipe, "learning_rate", 1e-3))


def require_data(recipe: object) -> None:
    """Raises QuestionError where the recipe has no `data()`: it can be planned, not trained."""
    if part(recipe, "data", None) is None:
        raise QuestionError(
            f"{type(recipe).__name__} cannot be trained: it has no data()",
            hint="return a map-style dataset from data(), or {'train': ..., 'validation': ...}",
        )


def length_of(recipe: object, dataset: Any) -> Callable[[int], float] | None:
    """The recipe's `length` of a sample's number; None where it has none. It knows the whole of a subset's dataset."""
    length = part(recipe, "length", None)
    if length is None:
        return None
    if isinstance(dataset, Subset):
        return lambda index: float(length(dataset.dataset, dataset.indices[index]))
    return lambda index: float(length(dataset, index))


def datasets(recipe: Any) -> dict[str, Any]:
    """The recipe's data by part, `train` always among them.

    Raises QuestionError where the recipe has no `data()`, or no training part in it.
    """
    require_data(recipe)
    parts = recipe.data()
    parts = dict(parts) if isinstance(parts, dict) else {"train": parts}
    unknown = set(parts) - {"train", "validation", "test"}
    if "train" not in parts or unknown:
        raise QuestionError(
            f"data() returned the parts {', '.join(map(str, parts))}",
            hint="train is needed; validation and test are optional; there are no others",
        )
    for name, dataset in parts.items():
        _require_random_access(name, dataset)
    if not len(parts["train"]):
        raise QuestionError("data() returned a training part without samples")
    return parts


def _require_random_access(name: str, dataset: object) -> None:
    """Raises QuestionError for what can only be read from its beginning."""
    # torch's IterableDataset has a __getitem__ that raises, and may have a length.
    iterable = any(kind.__name__ == "IterableDataset" for kind in type(dataset).__mro__)
    if iterable or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise QuestionError(
            f"data() returned a {type(dataset).__name__} as {name}, which can only be read from its beginning",
            hint="a resumed run would read it all again up to where it was: give its pieces with their counts, "
            "shoestring.pieces.Shards(names, counts, read)",
        )


def _hugging_face(source: str) -> LoadedRecipe:
    """The recipe of a configuration's file or folder, whose path is made absolute, or of a name on the hub."""
    if not source:
        raise QuestionError("hf: names no model", hint="hf:path/to/config.json, or hf:owner/name on the hub")
    path = Path(source).expanduser()
    here = path.exists() or path.suffix == ".json"
    if here and not path.exists():
        raise QuestionError(f"there is no file {path.resolve()}", hint="hf: takes a config.json, its folder or a name")
    source = str(path.resolve()) if here else source
    kind = importlib.import_module("shoestring.recipes.huggingface").of(source)
    return _defaults(LoadedRecipe(name=HUGGING_FACE + source, path=None, digest="", recipe=kind, options={}))


def _missing(recipe: object) -> list[str]:
    return [name for name in ("model", "batch", "loss") if not callable(getattr(recipe, name, None))]


def _recipe_class(path: Path, wanted: str) -> type:
    if not path.is_file():
        raise QuestionError(f"there is no file {path}", hint=f"built-in recipes: {', '.join(BUILT_IN)}")
    name = f"shoestring_recipe_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise QuestionError(f"{path} could not be run: {type(error).__name__}: {error}") from error
    found: dict[str, type] = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == name and not _missing(value)
    }
    if wanted:
        if wanted not in found:
            raise QuestionError(f"{path} has no recipe {wanted!r}", hint=nearest(wanted, found))
        return found[wanted]
    if not found:
        raise QuestionError(
            f"{path} has no recipe", hint="write a class with model(), batch(size) and loss(model, batch)"
        )
    if len(found) > 1:
        raise QuestionError(
            f"{path} has {len(found)} recipes: {', '.join(found)}", hint=f"say which: {path}:{next(iter(found))}"
        )
    return next(iter(found.values()))


def _defaults(found: LoadedRecipe) -> LoadedRecipe:
    """`found`, whose `recipe` may still be a class, as an instance with the options it has."""
    recipe = found.recipe() if isinstance(found.recipe, type) else found.recipe
    source = part(recipe, "options", recipe)
    found = dataclasses.replace(found, recipe=recipe)
    adapting = _adaptation_fields(found)
    return _with_options(
        found,
        {
            # An attribute `weights` of a plain recipe is something else than the option.
            name: field.default if name in adapting else getattr(source, name, field.default)
            for name, field in option_fields(found).items()
        },
    )


def _with_options(found: LoadedRecipe, chosen: dict[str, Any]) -> LoadedRecipe:
    problems = config.too_small(chosen, {"epochs": 1, "effective_batch": 1, "seed": 0})
    if problems:
        raise QuestionError(f"options of {found.name} cannot be used", problems=problems)
    options = part(found.recipe, "options", None)
    if options is not None:
        own = {field.name: chosen[field.name] for field in dataclasses.fields(options)}
        recipe = type(found.recipe)(dataclasses.replace(options, **own))
    else:
        recipe = copy.copy(found.recipe)
        for name, value in chosen.items():
            if hasattr(recipe, name) and name not in _adaptation_fields(found):
                # Its own methods may read what was chosen, a schedule its epochs for one.
                setattr(recipe, name, value)
    made = dataclasses.replace(found, recipe=recipe, options=chosen)
    _ = made.adaptation  # raises where it cannot be
    return made
