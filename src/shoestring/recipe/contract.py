"""The recipe protocol: a model, its data and its training in a few plain functions, independent of the engine.

Three methods are enough to estimate and plan; training also needs `data()`. A recipe inherits from nothing. Every other
part is optional and has a default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from shoestring.base.errors import UsageError
from shoestring.recipe.losses import loss_at as loss_at  # public names of this module, where these two were before
from shoestring.recipe.optimizers import build_optimizer as build_optimizer
from shoestring.recipe.parts import Parts
from shoestring.recipe.subset import Subset

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn

    from shoestring.base.settings import Settings

Batch: TypeAlias = Any
"""A tensor whose first dimension is the samples; or tuples, lists, mappings and dataclasses of them; or an object that
moves itself with `to(device)`."""


@runtime_checkable
class Recipe(Protocol):
    """A model with its data and training.

    All else is optional, as further attributes and methods of the same object:

    - `options`: a frozen dataclass whose fields are the recipe's options; `type(recipe)(options)` must make the recipe
      with other options. Without it the options are those of `options.Common` (`epochs`, `effective_batch`, `seed`,
      `subset`, `max_updates`, `ema`), and the recipe's attributes of these names are their defaults. Its class
      attribute `by_size` has the defaults at values of an option `size`, `{"tiny": {"epochs": 3}}`, for runs whose
      `data`, `epochs`, `max_updates` and `subset` are not set.
    - `own_names`: names of the class that other frameworks use for parts of a recipe (`recipe/near_misses.py`), and its
      own code for something else. Without it such a name is an error, because it would be ignored.
    - the parts for `parts.Learning`, such as `optimizer` and `schedule`
    - the parts for `parts.Data`, such as `data` and `collate`
    - the parts for `parts.Evaluation`, such as `evaluate` and `best`
    - the parts for `parts.Use`, such as `predict` and `exports`

    A recipe that leaves its updates to a library's trainer is also a `TrainerRecipe`.
    """

    def model(self) -> nn.Module:
        """Return the model on the CPU. Random initialization uses torch's generator, which the engine seeds."""

    def batch(self, size: int) -> Batch:
        """Return the largest possible batch of `size` samples, for planning; its values do not matter."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor | tuple[Tensor, Tensor | float]:
        """Return the mean over the microbatch's samples (a scalar), or the pair (sum, weight).

        Return the pair if samples have different weights (tokens that are not padding): an update's loss is the sum
        over its microbatches divided by their total weight, independent of how the update was split. If the loss
        compares samples with each other, set `whole_batch`.
        """


class TrainerRecipe(Recipe, Protocol):
    """A recipe that leaves its updates to a library's trainer, such as transformers' or TRL's.

    The trainer's callbacks then evaluate, save, stop and fall back on out-of-memory as the engine's own loop does.
    """

    def trainer(self, settings: Settings, data: Any, surviving: Any, *, folder: Path, device: Any) -> Any:
        """Return a trainer of the class `surviving(ITS_CLASS)`, for the training part `data`, on `device`.

        It should follow the settings `micro_batch`, `precision` and `checkpointing`, which need less memory after an
        out-of-memory; the effective batch of an update must still be the recipe's. The trainer's own files belong in
        `folder`, which is removed afterwards.
        """

    def learner(self) -> nn.Module:
        """Return the model that `trainer` trains, without a trainer, to load saved weights into.

        It is called after `data()`. A recipe without it is evaluated with `model()`.
        """

    def measured(self, model: nn.Module, samples: Any, polled: Any, size: int = 1) -> dict[str, Any]:
        """Return metrics of the model on a part of the data, instead of `evaluate(model, batches)`.

        `polled(pieces, total)` passes on pairs of (any object, its number of samples), of `total` samples in total, and
        ends the session at its deadline. `size` is the number of samples to process at once: first the default, and
        less after an out-of-memory. A recipe may omit that parameter.
        """


def require_data(recipe: object) -> None:
    """Raise UsageError if the recipe has no `data()`: it can be planned, but not trained."""
    parts = Parts.from_recipe(recipe)
    if parts.data.data is None:
        raise UsageError(
            f"{type(recipe).__name__} cannot be trained: it has no data()",
            hint=parts.data.data_hint or "return a map-style dataset from data(), or {'train': ..., 'validation': ...}",
        )


def require_real_data(recipe: object) -> None:
    """Raise UsageError as `require_data` does, and if the data only stands for data in a plan."""
    require_data(recipe)
    parts = Parts.from_recipe(recipe)
    if parts.data.has_placeholder_data:
        raise UsageError(
            f"{type(recipe).__name__} has nothing to train on: its samples have sizes, but no content",
            hint=parts.data.data_hint or "set its data",
        )


def datasets(recipe: Any) -> dict[str, Any]:
    """Return the recipe's data by part, which always include `train`.

    Raises UsageError if the recipe has no `data()`, or the data have no training part.
    """
    require_data(recipe)
    parts = recipe.data()
    if isinstance(parts, tuple) and all(hasattr(part, "__getitem__") and not _is_sample(part) for part in parts):
        raise UsageError(
            f"data() returned a tuple of {len(parts)} datasets", hint='return {"train": ..., "validation": ...}'
        )
    parts = dict(parts) if isinstance(parts, dict) else {"train": parts}
    unknown = set(parts) - {"train", "validation", "test"}
    if "train" not in parts or unknown:
        raise UsageError(
            f"data() returned the parts {', '.join(map(str, parts))}",
            hint="train is required, validation (not val) and test are optional, and no other parts are allowed",
        )
    for name, dataset in parts.items():
        _require_random_access(name, dataset)
    if not len(parts["train"]):
        raise UsageError("data() returned a training part without samples")
    return parts


def _is_sample(value: object) -> bool:
    """Return whether the value is a sample rather than a dataset: a tensor, an array or a built-in container."""
    return isinstance(value, tuple | list | dict | str | bytes) or hasattr(value, "dtype")


def _require_random_access(name: str, dataset: object) -> None:
    """Raise UsageError if the dataset can only be read sequentially."""
    # torch's IterableDataset has a __getitem__ that raises, and may have a length.
    iterable = any(kind.__name__ == "IterableDataset" for kind in type(dataset).__mro__)
    if iterable or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise UsageError(
            f"data() returned a {type(dataset).__name__} as {name}, which can only be read sequentially: a resumed run "
            "would have to read it again from its start",
            hint="return its pieces with their sample counts: shoestring.pieces.Shards(names, counts, read)",
        )


def length_of(recipe: object, dataset: Any) -> Callable[[int], float] | None:
    """Return the recipe's `length` as a function of a sample's index, or None if it has none.

    For a subset, the recipe's `length` receives the whole dataset.
    """
    length = Parts.from_recipe(recipe).data.length
    if length is None:
        return None
    if isinstance(dataset, Subset):
        return lambda index: float(length(dataset.dataset, dataset.indices[index]))
    return lambda index: float(length(dataset, index))


def updates_per_epoch(samples: int, effective_batch: int) -> int:
    """Return the number of updates in one pass over `samples`.

    The last update has the remaining samples. A single remaining sample joins the previous update, because it has no
    batch statistics and a noisy gradient.
    """
    full, remainder = divmod(samples, effective_batch)
    joins = remainder == 1 and full > 0 and effective_batch > 1
    return full + (remainder > 0 and not joins)
