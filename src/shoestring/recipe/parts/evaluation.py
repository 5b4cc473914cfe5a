"""What a recipe may have for its evaluations: metrics, the best epoch, answers and images for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The optional parts of a recipe that measure its model and choose the best weights."""

    evaluate: Callable[[nn.Module, Iterator[Any]], Mapping[str, Any]] | None = None
    """`evaluate(model, batches)` -> metrics by name, numbers (which are plotted) or JSON; by default the mean `loss`.
    The metric `evidence` is not a number, but JSON that the report draws: a confusion matrix, histograms, examples
    (`recipe/evidence.py` has helpers and the formats)."""
    evaluate_batch: Callable[[nn.Module, Any], Any] | None = None
    """`evaluate_batch(model, batch)` and `combine` are `evaluate` in two steps, so that several GPUs divide the
    batches. This one returns what a batch contributes: tensors, numbers and texts in tuples, lists and dicts; no NumPy
    arrays or named tuples."""
    combine: Callable[[Sequence[Any]], Mapping[str, Any]] | None = None
    """`combine(results)` -> the metrics of the list of what all batches contribute, in their order."""
    measured: Callable[..., Mapping[str, Any]] | None = None
    """`measured(model, samples, polled, size)` -> the metrics of a model that a library trains
    (`contract.TrainerRecipe`), instead of `evaluate`."""
    evaluation_collate: Callable[[Any], Any] | None = None
    """`evaluation_collate(samples)` -> a batch for an evaluation or predictions; by default `collate`."""
    evaluation_work: Callable[[nn.Module, Any], Iterable[Any]] | None = None
    """`evaluation_work(model, batch)`: the model's work in an evaluation of a batch, for planning, as an iterator like
    `rollout`; by default the forward pass of `loss`."""

    best: tuple[str, str] = ("loss", "min")
    """The metric on the validation data that selects the best weights, and whether `"min"` or `"max"` is better."""
    patience: int | None = None
    """Training stops after this many epochs without improvement; by default never."""
    compare: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Mapping[str, Any]]] | None = None
    """`compare(history)` -> metrics by the names of what a run compares (the networks of its stages), computed from its
    epochs, mappings with `epoch`, `update` and the validation `metrics`: what the end of the run and its report
    show."""

    answers: Callable[[nn.Module], Iterable[Mapping[str, Any]]] | None = None
    """`answers(model)` -> rows for people, an iterable of mappings with the texts `prompt` and `answer`, and perhaps
    `reference` (the true answer) and `stopped` (whether the answer ended by itself): the model's answers to the same
    held-out prompts, which the report shows side by side. Called before the first update and after the evaluation of
    each epoch, in evaluation mode, without gradients, on the first GPU. The session can end between two rows."""
    answers_work: Callable[[nn.Module], Iterable[Any]] | None = None
    """`answers_work(model)`: the model's work in `answers`, for planning, as an iterator like `rollout`."""
    illustrate: Callable[[nn.Module, Any, int], Mapping[str, bytes]] | None = None
    """`illustrate(model, dataset, index)` -> images of a sample by caption, each a PNG or JPEG as bytes: for the
    `examples` of the evidence, after the evaluation of the best epoch so far and of the test part. Called in evaluation
    mode, without gradients, on the first GPU."""

    targets: Callable[[Any], Sequence[Any]] | None = None
    """`targets(batch)` -> a sequence with the true answer of each sample, in the form of a prediction, for the rows of
    `evaluate --out`."""
    identify: Callable[[Any, int], Any] | None = None
    """`identify(dataset, index)` -> the identifier of a sample in these rows, or `Rows` of them; by default its
    index."""
    whole: Callable[[], Any] | None = None
    """`whole()` -> all data as one dataset, for `evaluate --whole`; by default the parts of `data()`, one after
    another."""
