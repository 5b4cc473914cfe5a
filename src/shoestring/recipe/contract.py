"""The recipe: what is trained, in a few plain functions that know nothing of the engine; and what it is asked for.

Three methods are enough to estimate and plan; training also needs `data()`. Nothing is inherited. Everything optional
is used where it is there and has a default where it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from shoestring.errors import UsageError
from shoestring.recipe.parts import Parts
from shoestring.recipe.subset import Subset

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from shoestring.settings import Settings

Batch: TypeAlias = Any  # a tensor, or tuples, lists and dicts of them; first dimension of each: samples


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

    A recipe whose updates a library's trainer makes is a `TrainerRecipe` as well.
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


class TrainerRecipe(Recipe, Protocol):
    """A recipe that leaves its updates to a library's trainer, such as transformers' or TRL's.

    The trainer's callbacks then evaluate, save, stop and fall back on out-of-memory as the engine's own loop does.
    """

    def trainer(self, settings: Settings, data: Any, surviving: Any, *, folder: Path, device: Any) -> Any:
        """A trainer of the class `surviving(ITS_CLASS)`, for the training part `data`, on `device`.

        Of the settings it should follow `micro_batch`, `precision` and `checkpointing`, which are smaller after
        running out of memory; an update must have the recipe's effective batch all the same. Files of its own belong
        in `folder`, which is removed afterwards.
        """

    def learner(self) -> nn.Module:
        """The model as `trainer` trains it, without a trainer, to load saved weights into. Called after `data()`.

        A recipe without it is evaluated with `model()`.
        """

    def measured(self, model: nn.Module, samples: Any, polled: Any, size: int = 1) -> dict[str, Any]:
        """Metrics of the model on a part of the data, instead of `evaluate(model, batches)`.

        `polled(pieces, total)` passes on pairs of (anything, its number of samples), of `total` samples, and ends the
        session when it is time to. `size` is how many samples to work on at once: the default first, less after
        running out of memory. A recipe may leave that parameter out.
        """


def require_data(recipe: object) -> None:
    """Raises UsageError where the recipe has no `data()`: it can be planned, not trained."""
    if Parts.of(recipe).data is None:
        raise UsageError(
            f"{type(recipe).__name__} cannot be trained: it has no data()",
            hint="return a map-style dataset from data(), or {'train': ..., 'validation': ...}",
        )


def datasets(recipe: Any) -> dict[str, Any]:
    """The recipe's data by part, `train` always among them.

    Raises UsageError where the recipe has no `data()`, or no training part in it.
    """
    require_data(recipe)
    parts = recipe.data()
    parts = dict(parts) if isinstance(parts, dict) else {"train": parts}
    unknown = set(parts) - {"train", "validation", "test"}
    if "train" not in parts or unknown:
        raise UsageError(
            f"data() returned the parts {', '.join(map(str, parts))}",
            hint="train is needed; validation and test are optional; there are no others",
        )
    for name, dataset in parts.items():
        _require_random_access(name, dataset)
    if not len(parts["train"]):
        raise UsageError("data() returned a training part without samples")
    return parts


def _require_random_access(name: str, dataset: object) -> None:
    """Raises UsageError for what can only be read from its beginning."""
    # torch's IterableDataset has a __getitem__ that raises, and may have a length.
    iterable = any(kind.__name__ == "IterableDataset" for kind in type(dataset).__mro__)
    if iterable or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise UsageError(
            f"data() returned a {type(dataset).__name__} as {name}, which can only be read from its beginning",
            hint="a resumed run would read it all again up to where it was: give its pieces with their counts, "
            "shoestring.pieces.Shards(names, counts, read)",
        )


def length_of(recipe: object, dataset: Any) -> Callable[[int], float] | None:
    """The recipe's `length` of a sample's number; None where it has none. It knows the whole of a subset's dataset."""
    length = Parts.of(recipe).length
    if length is None:
        return None
    if isinstance(dataset, Subset):
        return lambda index: float(length(dataset.dataset, dataset.indices[index]))
    return lambda index: float(length(dataset, index))


def build_optimizer(recipe: object, model: nn.Module) -> Optimizer:
    """The recipe's optimizer over the model's trainable parameters."""
    parts = Parts.of(recipe)
    if parts.optimizer is not None:
        return parts.optimizer(model)
    import torch

    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trainable, lr=parts.learning_rate)


def loss_at(recipe: Any, update: int, updates_per_epoch: int, total_updates: int) -> Callable[[nn.Module, Batch], Any]:
    """The recipe's loss as it is in update number `update`: in its stage, where it has stages."""
    stage = Parts.of(recipe).stage
    if stage is None:
        plain: Callable[[nn.Module, Batch], Any] = recipe.loss
        return plain
    return partial(recipe.loss, stage=stage(update, updates_per_epoch, total_updates))


def updates_per_epoch(samples: int, effective_batch: int) -> int:
    """How many updates pass over `samples` once.

    The last has the samples that are left. A single one left joins the update before it: a lone sample has no batch
    statistics and a noisy gradient.
    """
    full, rest = divmod(samples, effective_batch)
    joins = rest == 1 and full > 0 and effective_batch > 1
    return full + (rest > 0 and not joins)
