"""What may be chosen for a recipe: its own options and those of any recipe; and a recipe with its options chosen."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from shoestring import config
from shoestring.errors import UsageError
from shoestring.recipe.contract import datasets
from shoestring.recipe.parts import Parts
from shoestring.recipe.subset import Subset, chosen


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
            raise UsageError("a model cannot be adapted so", problems=problems, hint="for one, --set lora.r=8")


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

    @cached_property
    def parts(self) -> Parts:
        """What the recipe has of all that is optional."""
        return Parts.of(self.recipe)

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
        wanted = None if "subset" in own_fields(self) else self.options["subset"]
        if wanted is None:
            return parts
        whole, label = parts["train"], self.parts.label
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


def option_fields(found: LoadedRecipe) -> dict[str, config.Field]:
    """What may be set for the recipe: its own options, then those of `Common` and `Adaptation` not among them."""
    own = own_fields(found)
    common = {name: field for name, field in config.fields(Common).items() if name not in own}
    return {**own, **common, **_adaptation_fields(found)}


def own_fields(found: LoadedRecipe) -> dict[str, config.Field]:
    """Of its `options`; none where it has none."""
    options = getattr(found.recipe, "options", None)
    return {} if options is None else config.fields(type(options))


def _adaptation_fields(found: LoadedRecipe) -> dict[str, config.Field]:
    own = own_fields(found).keys()
    hidden = own | _OF_ADAPTERS if "lora_r" in own else own
    return {name: field for name, field in config.fields(Adaptation).items() if name not in hidden}


def with_defaults(
    recipe: object, name: str, *, path: Path | None = None, digest: str = "", is_live: bool = False
) -> LoadedRecipe:
    """A recipe, or a class that makes one, with the options it has."""
    recipe = recipe() if isinstance(recipe, type) else recipe
    source = getattr(recipe, "options", recipe)
    found = LoadedRecipe(name=name, is_live=is_live, path=path, digest=digest, recipe=recipe, options={})
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
        raise UsageError(f"options of {found.name} cannot be used", problems=problems)
    options = getattr(found.recipe, "options", None)
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
