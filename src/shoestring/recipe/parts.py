"""The optional parts of a recipe with their types and defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

from shoestring.recipe.evaluating import EvaluatesBatches

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from shoestring.recipe.exports import Format, OnnxGraph


class Schedule(Protocol):
    """A pure function of an update's number (from 0) and of the numbers of updates per epoch and in total."""

    def __call__(self, update: int, updates_per_epoch: int, total_updates: int, /) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A recipe's optional parts, which `contract.Recipe` and `TrainerRecipe` describe; None for a missing part."""

    data: Callable[[], Any] | None = None
    data_hint: str = ""
    """What to do about a built-in recipe without `data`."""
    has_placeholder_data: bool = False
    collate: Callable[[Any], Any] | None = None
    evaluation_collate: Callable[[Any], Any] | None = None
    length: Callable[[Any, int], float] | None = None
    capacity: float | None = None
    length_option: str | None = None
    length_unit: str = "tokens"
    length_source: Callable[[], str] | None = None
    row: str = "a sample"
    samples_per_row: float = 1.0
    rows_read: Callable[[], int] | None = None
    count_rows: Callable[[Mapping[str, int]], int | None] | None = None
    part_shares: Mapping[str, float] = field(default_factory=lambda: {"train": 1.0})
    packed_batch: Callable[[int], Any] | None = None
    label: Callable[[Any, int], Any] | None = None
    optimizer: Callable[[nn.Module], Any] | None = None
    learning_rate: float = 1e-3
    """The learning rate of the AdamW that is used without `optimizer`."""
    schedule: Schedule | None = None
    stage: Schedule | None = None
    stages: Sequence[Any] | None = None
    phases: int = 1
    clip_norm: float | Mapping[Any, float] | None = None
    blocks: Callable[[nn.Module], Sequence[nn.Module]] | None = None
    first_batches: Callable[[int], Mapping[float, float]] | None = None
    count_updates: Callable[[int], int] | None = None
    rollout: Callable[[Any, Any], Iterable[Any]] | None = None
    host_work: Callable[[], Mapping[str, float]] | None = None
    evaluation_work: Callable[[nn.Module, Any], Iterable[Any]] | None = None
    answers_work: Callable[[nn.Module], Iterable[Any]] | None = None
    notes: Callable[[], Iterable[str]] = list
    evaluate: Callable[[nn.Module, Iterator[Any]], Mapping[str, Any]] | None = None
    evaluate_batch: Callable[[nn.Module, Any], Any] | None = None
    combine: Callable[[Sequence[Any]], Mapping[str, Any]] | None = None
    answers: Callable[[nn.Module], Iterable[Mapping[str, Any]]] | None = None
    illustrate: Callable[[nn.Module, Any, int], Mapping[str, bytes]] | None = None
    converse: Callable[[nn.Module, Sequence[Mapping[str, Any]]], Iterable[str]] | None = None
    best: tuple[str, str] = ("loss", "min")
    compare: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Mapping[str, Any]]] | None = None
    patience: int | None = None
    predict: Callable[[nn.Module, Any], Any] | None = None
    prediction_options: Sequence[str] = ()
    data_options: Sequence[str] = ()
    inputs: Callable[[Any], Iterable[Any]] | None = None
    targets: Callable[[Any], Sequence[Any]] | None = None
    identify: Callable[[Any, int], Any] | None = None
    whole: Callable[[], Any] | None = None
    describe: Callable[[Any, int], Any] | None = None
    preview: Callable[[], str] | None = None
    save_preprocessing: Callable[[Path], None] | None = None
    load_preprocessing: Callable[[Path], None] | None = None
    is_pretrained: bool | None = None
    random_parts: Callable[[], Iterable[str]] = tuple
    adaptation_defaults: Mapping[str, Any] = field(default_factory=dict)
    keeps_stored_type: bool = False
    skeleton: Callable[[], nn.Module] | None = None
    pretrained: Callable[[Path], nn.Module] | None = None
    inference: Callable[[nn.Module, Any], Iterable[Any]] | None = None
    onnx: Callable[[nn.Module], OnnxGraph] | None = None
    exports: Mapping[str, Format] = field(default_factory=dict)
    whole_batch: bool = False
    trainer: Callable[..., Any] | None = None
    learner: Callable[[], nn.Module] | None = None
    measured: Callable[..., Mapping[str, Any]] | None = None

    @classmethod
    def from_recipe(cls, recipe: object) -> Parts:
        """Return the parts of a recipe, which may be any object; `Parts` are returned unchanged."""
        if isinstance(recipe, cls):
            return recipe
        names = [field.name for field in fields(cls) if hasattr(recipe, field.name)]
        parts = cls(**{name: getattr(recipe, name) for name in names})
        if parts.evaluate is None and parts.evaluates_batches:
            return replace(parts, evaluate=parts.evaluate_batches)
        if getattr(parts.evaluate, "__func__", None) is not EvaluatesBatches.evaluate:
            return replace(parts, evaluate_batch=None)  # its own `evaluate` computes other metrics
        return parts

    @property
    def evaluates_batches(self) -> bool:
        """Whether an evaluation can be divided: into the results of its batches."""
        return self.evaluate_batch is not None and self.combine is not None

    @property
    def divides_evaluation(self) -> bool:
        """Whether several GPUs divide the batches of an evaluation: they have results of their own, or the loss."""
        return not self.measured and (self.evaluates_batches or not self.evaluate)

    def evaluate_batches(self, model: nn.Module, batches: Iterable[Any]) -> Mapping[str, Any]:
        """Implement `evaluate` for a recipe that has `evaluate_batch` and `combine` instead."""
        assert self.evaluate_batch is not None
        assert self.combine is not None
        return self.combine([self.evaluate_batch(model, batch) for batch in batches])

    @property
    def default_measured_size(self) -> int | None:
        """The number of samples that `measured` processes at once: the default of its parameter `size`.

        None without that parameter: then the number cannot be reduced on out-of-memory.
        """
        size = inspect.signature(self.measured).parameters.get("size") if self.measured else None
        return size.default if size and isinstance(size.default, int) else None

    @property
    def splits_evaluation(self) -> bool:
        """Whether an evaluation may use smaller batches on out-of-memory."""
        return not self.whole_batch or self.measured is not None

    def evaluation_size(self, micro_batch: int) -> int:
        """Return how many samples an evaluation first processes at once; 1 if `measured` has no parameter `size`."""
        return self.default_measured_size or (1 if self.measured else micro_batch)
