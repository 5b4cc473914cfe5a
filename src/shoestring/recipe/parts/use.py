"""What a recipe may have for the use of its trained model: predictions, preprocessing, exports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from shoestring.recipe.exports import Format, OnnxGraph


@dataclass(frozen=True, kw_only=True)
class Use:
    """The optional parts of a recipe that load, run and export a trained model."""

    predict: Callable[[nn.Module, Any], Any] | None = None
    """`predict(model, batch)` -> a sequence with the prediction of each sample of the batch, or a tensor whose first
    dimension is the samples. A prediction is JSON; a mapping with the key `prediction` becomes several columns of the
    row; `Rows` (`recipe/inputs.py`) are several rows. The column `files`, a mapping from relative names to bytes or to
    functions that return them, is written into the folder of the answer if that is one, and its names are in the row.
    Called in evaluation mode, without gradients. Test-time augmentation belongs here: the mean of what the model makes
    of the batch and of its mirror image, for example. Targets in the batch must not change the prediction; samples of
    `inputs` have none."""
    inputs: Callable[[Any], Iterable[Any]] | None = None
    """`inputs(source)` -> an iterable of `Input`s without targets (`recipe/inputs.py`), read lazily; with `len` if
    their number is known. `source` is the path in the option `data` (None if it is not set), or a list of rows as they
    are in the data file. By default the samples of `data()`, part after part, or the members of the list."""
    prediction_options: Sequence[str] = ()
    """The names of options that only predictions have."""
    converse: Callable[[nn.Module, Sequence[Mapping[str, Any]]], Iterable[str]] | None = None
    """`converse(model, messages)` -> an iterator of the pieces of the answer to a conversation, as they are generated:
    `shoestring predict DIR` on a terminal, without data. `messages` are mappings with `role` (`user` or `assistant`)
    and `content`, the last one from the user. Called like `predict`."""
    inference: Callable[[nn.Module, Any], Iterable[Any]] | None = None
    """`inference(model, batch)`: the model's work in `predict`, for planning, as an iterator like `rollout`; by default
    `rollout`, or else the forward pass of `loss`."""

    save_preprocessing: Callable[[Path], None] | None = None
    """`save_preprocessing(folder)` writes into the empty `folder` what inference needs besides the weights and the
    options: a scaler that was fitted on the training data, a vocabulary, a tokenizer, configurations. Called once in a
    run, after `data()`."""
    load_preprocessing: Callable[[Path], None] | None = None
    """`load_preprocessing(folder)` restores it in a new recipe, before any other method: `data()` then uses it instead
    of fitting it again. The folder stays there as long as the recipe is used."""
    skeleton: Callable[[], nn.Module] | None = None
    """`skeleton()` -> the model without pretrained weights, into which all weights of a run are loaded, for recipes
    that train all weights: it makes the pretrained weights unnecessary. By default `model()`."""
    pretrained: Callable[[Path], nn.Module] | None = None
    """`pretrained(path)` -> the model with the weights at `path`, a file or a folder of any origin; by default
    `model()` with the tensors of a state dict of the same names."""

    onnx: Callable[[nn.Module], OnnxGraph] | None = None
    """`onnx(model)` -> an `OnnxGraph` (`recipe/exports.py`): the model as a function of tensors, for
    `shoestring export --to onnx`."""
    exports: Mapping[str, Format] = field(default_factory=dict)
    """The recipe's other formats by name, `{"huggingface": Format(write=...)}` (`recipe/exports.py`)."""
