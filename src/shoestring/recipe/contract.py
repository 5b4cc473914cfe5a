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

    Optional parts:

    - `options`: a frozen dataclass whose fields are the recipe's options; `type(recipe)(options)` must make the recipe
      with other options. Without it the options are those of `options.Common` (`epochs`, `effective_batch`, `seed`,
      `subset`, `max_updates`, `ema`), and the recipe's attributes of these names are their defaults. Its class
      attribute `by_size` has the defaults at values of an option `size`, `{"tiny": {"epochs": 3}}`, for runs whose
      `data`, `epochs`, `max_updates` and `subset` are not set.
    - `data()` -> a map-style dataset (`len` and `[index]`; `__getitems__(indices)` if fetching a whole batch is
      cheaper), or a dict of datasets: `train`, and optionally `validation` and `test`. Training needs it. A small
      dataset with `__getitems__`, `nbytes` and `to(device)`, which returns the same samples on the device, is moved to
      the GPU. For data that can only be read sequentially, in pieces with known sample counts, use
      `shoestring.pieces.Shards`; see docs/guides/data.md.
    - `has_placeholder_data`: whether the samples of `data()` have sizes, but no content: it is planned, not trained.
    - `collate(samples)` -> a batch; by default `torch.utils.data.default_collate`; for sequences of different lengths
      `shoestring.pieces.pad_batch(samples, value)`. Draw random numbers in `[index]` or in `collate`: there they
      are the same in every process that fetches.
    - `evaluation_collate(samples)` -> a batch for an evaluation or predictions; by default `collate`.
    - `length(dataset, index)` -> the length of a sample, without reading it: an update's samples of similar length
      share a microbatch. The samples of an update do not change.
    - `capacity`: the length of a sample of `batch(size)`. With it and `length`, a plan counts the padding of this data
      rather than samples of the largest length.
    - `length_option`: the name of the option that is the `capacity`. A plan then traces a shorter batch as well, to
      know the time of shorter samples; by default their time is in proportion to their length.
    - `length_unit`: what lengths count, by default "tokens". `length_source()` -> a text that identifies what else the
      lengths depend on, such as the tokenizer: with another one they differ.
    - For plans of data that are not here (the option `rows`): `row`, what a row of the data is ("a judgment"), by
      default a sample; `samples_per_row`, how many samples a row has, by default 1; `rows_read()`,
      the number of rows that `data` has read, by default that of the samples; `part_shares`, the share of the
      rows in each part, by default all in `train`; `count_rows(files)`, the number of rows of data with these files,
      a mapping from their paths relative to the option `data` (or the name of the file that it is) to their bytes,
      None if these do not tell. A recipe without `count_rows` cannot tell; `shoestring kaggle start` then asks for
      `rows`.
    - `packed_batch(size)` -> like `batch`, the largest batch of `size` rows into which samples of in total at most
      `capacity` are packed (`packing=yes`). `collate` then gets lists of samples, one for each row.
    - `label(dataset, index)` -> the label of a sample; a subset of the training data preserves the labels' shares.
    - `optimizer(model)` -> a torch optimizer, or the pair (optimizer, torch scheduler), whose scheduler makes a step
      after each update; by default AdamW with `learning_rate` (1e-3).
    - `schedule(update, updates_per_epoch, total_updates)` -> the factor on the optimizer's learning rates for update
      number `update` (from 0); a pure function, so that a resumed run has the same schedule; by default 1. The total is
      the smaller of `epochs * updates_per_epoch` and the option `max_updates`.
    - `stage(update, updates_per_epoch, total_updates)` -> the argument `stage=` of `loss` in update number `update`
      (a curriculum's weights, for example); a pure function like `schedule`. When the loss is computed outside of a
      run's updates, for example in an evaluation, `stage` is not passed.
    - `stages`: the values of `stage` that estimates trace and `check` runs: the memory is that of the largest, with the
      optimizer's states of all of them, and the time is the mean over them, as if each had an equal share of the
      updates. Without it, estimates do not pass `stage` either.
    - `blocks(model)` -> the modules that activation checkpointing may recompute, in the order in which they are
      checkpointed; by default the layers of transformers' models, or the modules that occur several times in a list.
    - `first_batches(size)` -> the probability of each size of the first batch, as a share of `batch(size)`, for
      planning: smaller first batches fragment memory, so that larger ones do not fit into it later. Empty if all
      batches have one shape; by default an assumption for sequences of tokens.
    - `count_updates(samples)` -> the number of updates in an epoch of so many training samples, for a trainer whose
      updates are not `effective_batch` samples each (of TRL's GRPO it counts completions, not prompts).
    - `whole_batch = True`: the loss compares all samples of an update with each other (a contrastive loss with in-batch
      negatives), so no update is ever split: its microbatch is the effective batch, on one GPU, also on out-of-memory,
      where only the other fallbacks are tried. Evaluations use batches of `effective_batch` samples as well. The last
      batch of an epoch or of an evaluation may be smaller. A loss that depends on its microbatch without `whole_batch`
      is reported before the first update of a run and by `check`.
    - `phases`: how many parts the run has, one after another, each with as many epochs as the option `epochs` says (to
      train several networks in one run, in stages); by default 1.
    - `clip_norm`: the maximum norm of the gradient, or a mapping from each of `stages` to it; by default none.
    - `rollout(model, batch)`: the model's work without gradients before an update's first forward, in evaluation mode
      and over all of the update's samples (generating the completions that it then trains on), for planning. An
      iterator that yields after each step the state saved for the next step (a cache of keys and values), or a `Step`
      (`recipe/generation.py`) that also tells how many steps take as long: of equal steps one is enough.
    - `host_work()` -> the seconds of what the host computes for one of an update's samples besides fetching it, by name
      (`{"rewards": 0.001}`), measured when it is called, for planning.
    - `evaluation_work(model, batch)`: the model's work in an evaluation of a batch, for planning, as an iterator like
      `rollout`; by default the forward pass of `loss`.
    - `answers_work(model)`: the model's work in `answers`, for planning, as an iterator like `rollout`.
    - `is_pretrained`: whether `model()` begins from pretrained weights; LoRA is only proposed then. By default a plan
      observes whether `model()` calls a function that loads weights: `from_pretrained` or `load_state_dict` of a
      module, `torch.load`, `load_file` or `load_model` of safetensors.
    - `random_parts()` -> the names of the model's parts that begin with random weights where pretrained ones are
      usual, such as `("encoder",)`; plans name them in their first sentence.
    - `adaptation_defaults`: other defaults of the options that adapt any recipe's model, such as `{"lora_r": 16}`.
    - `keeps_stored_type`: whether `model()` keeps the type in which weights are stored; they are then converted to that
      of the option `weights`.
    - `notes()` -> full sentences about the data and the model for the user: skipped rows, synthetic data, random
      weights. Called after `data()` and `model()`.
    - `evaluate(model, batches)` -> metrics by name, numbers (which are plotted) or JSON; by default the mean `loss`.
    - `evaluate_batch(model, batch)` and `combine(results)`: `evaluate` in two steps, so that several GPUs divide the
      batches: what a batch contributes (tensors, numbers and texts in tuples, lists and dicts), and the metrics of the
      list of what all of them contribute, in their order.
      The metric `evidence` is not a number, but JSON that the report draws: a confusion matrix, histograms, examples
      (`recipe/evidence.py`).
    - `illustrate(model, dataset, index)` -> images of a sample by caption, each a PNG or JPEG as bytes: for the
      `examples` of the evidence, after the evaluation of the best epoch so far and of the test part. Called in
      evaluation mode, without gradients, on the first GPU.
    - `answers(model)` -> rows for people, an iterable of mappings with the texts `prompt` and `answer`, and perhaps
      `reference` (the true answer) and `stopped` (whether the answer ended by itself): the model's answers to the same
      held-out prompts, which the report shows side by side. Called before the first update and after the evaluation of
      each epoch, in evaluation mode, without gradients, on the first GPU. The session can end between two rows.
    - `best`: the metric on the validation data that selects the best weights, and whether `"min"` or `"max"` is better;
      by default `("loss", "min")`. `patience`: training stops after this many epochs without improvement; by default
      never.
    - `compare(history)` -> metrics by the names of what a run compares (the networks of its stages), computed from its
      epochs, mappings with `epoch`, `update` and the validation `metrics`: what the end of the run and its report show.

    - `own_names`: names of the class that other frameworks use for parts of a recipe (`recipe/near_misses.py`), and its
      own code for something else. Without it such a name is an error, because it would be ignored.

    Optional parts for the use of a trained model:

    - `predict(model, batch)` -> a sequence with the prediction of each sample of the batch, or a tensor whose first
      dimension is the samples. A prediction is JSON; a mapping with the key `prediction` becomes several columns of the
      row; `Rows` (`recipe/inputs.py`) are several rows. The column `files`, a mapping from relative names to bytes or
      to functions that return them, is written into the folder of the answer if that is one, and its names are in the
      row. Called in evaluation mode, without gradients. Targets in the batch must not change the prediction; samples
      of `inputs` have none.
    - `inputs(source)` -> an iterable of `Input`s without targets (`recipe/inputs.py`), read lazily; with `len` if their
      number is known. `source` is the path in the option `data` (None if it is not set), or a list of rows as they are
      in the data file. By default the samples of `data()`, part after part, or the members of the list.
    - `prediction_options`: the names of options that only predictions have.
    - `data_options`: the names of options that are paths which belong to those in `data`. A prediction for other data
      has their defaults in place of paths of the run that are not on this machine.
    - `converse(model, messages)` -> an iterator of the pieces of the answer to a conversation, as they are generated:
      `shoestring predict DIR` on a terminal, without data. `messages` are mappings with `role` (`user` or `assistant`)
      and `content`, the last one from the user. Called like `predict`.
    - `targets(batch)` -> a sequence with the true answer of each sample, in the form of a prediction, for the rows of
      `evaluate --out`. `identify(dataset, index)` -> the identifier of a sample in these rows, or `Rows` of
      them; by default its index.
    - `describe(dataset, index)` -> a sample for people, as JSON, in the answer of `replay`; by default its identifier,
      and the shapes and the first values of its tensors.
    - `preview()` -> text for people: what a sample of the training data is to the model, which `check` prints.
    - `whole()` -> all data as one dataset, for `evaluate --whole`; by default the parts of `data()`, one after another.
    - `save_preprocessing(folder)` writes into the empty `folder` what inference needs besides the weights and the
      options: a scaler that was fitted on the training data, a vocabulary, a tokenizer, configurations. Called once in
      a run, after `data()`. `load_preprocessing(folder)` restores it in a new recipe, before any other method: `data()`
      then uses it instead of fitting it again. The folder stays there as long as the recipe is used.
    - `skeleton()` -> the model without pretrained weights, into which all weights of a run are loaded, for recipes that
      train all weights: it makes the pretrained weights unnecessary. By default `model()`.
    - `pretrained(path)` -> the model with the weights at `path`, a file or a folder of any origin; by default `model()`
      with the tensors of a state dict of the same names.
    - `onnx(model)` -> an `OnnxGraph` (`recipe/exports.py`): the model as a function of tensors, for
      `shoestring export --to onnx`.
    - `exports`: the recipe's other formats by name, `{"huggingface": Format(write=...)}` (`recipe/exports.py`).
    - `inference(model, batch)`: the model's work in `predict`, for planning, as an iterator like `rollout`; by default
      `rollout`, or else the forward pass of `loss`.

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
    if parts.data is None:
        raise UsageError(
            f"{type(recipe).__name__} cannot be trained: it has no data()",
            hint=parts.data_hint or "return a map-style dataset from data(), or {'train': ..., 'validation': ...}",
        )


def require_real_data(recipe: object) -> None:
    """Raise UsageError as `require_data` does, and if the data only stands for data in a plan."""
    require_data(recipe)
    parts = Parts.from_recipe(recipe)
    if parts.has_placeholder_data:
        raise UsageError(
            f"{type(recipe).__name__} has nothing to train on: its samples have sizes, but no content",
            hint=parts.data_hint or "set its data",
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
    length = Parts.from_recipe(recipe).length
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
