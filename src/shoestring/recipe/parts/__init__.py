"""The optional parts of a recipe, in four groups by what they serve: learning, data, evaluation and use.

A recipe has its parts as attributes and methods of one plain object, and inherits from nothing. Each group is a frozen
dataclass whose fields are the parts that the group reads from the recipe, with their types, defaults and documentation.
They are not protocols of `typing`: those have no optional members. Nothing here calls a part.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from shoestring.recipe.evaluating import EvaluatesBatches
from shoestring.recipe.parts.data import Data
from shoestring.recipe.parts.evaluation import Evaluation
from shoestring.recipe.parts.learning import Learning
from shoestring.recipe.parts.use import Use

if TYPE_CHECKING:
    from torch import nn

_Group = TypeVar("_Group", Learning, Data, Evaluation, Use)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A recipe's optional parts by group; a part that the recipe lacks has its default, mostly None."""

    learning: Learning = field(default_factory=Learning)
    data: Data = field(default_factory=Data)
    evaluation: Evaluation = field(default_factory=Evaluation)
    use: Use = field(default_factory=Use)

    @classmethod
    def from_recipe(cls, recipe: object) -> Parts:
        """Return the parts of a recipe, which may be any object; `Parts` are returned unchanged."""
        if isinstance(recipe, cls):
            return recipe
        return cls(
            learning=_read(Learning, recipe),
            data=_read(Data, recipe),
            evaluation=_read_evaluation(recipe),
            use=_read(Use, recipe),
        )

    @property
    def evaluates_batches(self) -> bool:
        """Whether an evaluation can be divided: into the results of its batches."""
        return _evaluates_batches(self.evaluation)

    @property
    def divides_evaluation(self) -> bool:
        """Whether several GPUs divide the batches of an evaluation: they have results of their own, or the loss."""
        return not self.evaluation.measured and (self.evaluates_batches or not self.evaluation.evaluate)

    @property
    def splits_evaluation(self) -> bool:
        """Whether an evaluation may use smaller batches on out-of-memory."""
        return not self.learning.whole_batch or self.evaluation.measured is not None

    @property
    def default_measured_size(self) -> int | None:
        """The number of samples that `measured` processes at once: the default of its parameter `size`.

        None without that parameter: then the number cannot be reduced on out-of-memory.
        """
        measured = self.evaluation.measured
        size = inspect.signature(measured).parameters.get("size") if measured else None
        return size.default if size and isinstance(size.default, int) else None

    def evaluation_size(self, micro_batch: int) -> int:
        """Return how many samples an evaluation first processes at once; 1 if `measured` has no parameter `size`."""
        return self.default_measured_size or (1 if self.evaluation.measured else micro_batch)


def _read(group: type[_Group], recipe: object) -> _Group:
    """Return the parts of one group that the recipe has."""
    return group(**{part.name: getattr(recipe, part.name) for part in fields(group) if hasattr(recipe, part.name)})


def _read_evaluation(recipe: object) -> Evaluation:
    """Return how the recipe is evaluated: by its `evaluate`, or by `evaluate_batch` and `combine`, never by both."""
    parts = _read(Evaluation, recipe)
    if parts.evaluate is None and _evaluates_batches(parts):
        return replace(parts, evaluate=partial(_evaluate_batches, parts))
    if getattr(parts.evaluate, "__func__", None) is not EvaluatesBatches.evaluate:
        return replace(parts, evaluate_batch=None)  # its own `evaluate` computes other metrics
    return parts


def _evaluates_batches(parts: Evaluation) -> bool:
    return parts.evaluate_batch is not None and parts.combine is not None


def _evaluate_batches(parts: Evaluation, model: nn.Module, batches: Iterable[Any]) -> Mapping[str, Any]:
    """Implement `evaluate` by `evaluate_batch` and `combine`."""
    assert parts.evaluate_batch is not None
    assert parts.combine is not None
    return parts.combine([parts.evaluate_batch(model, batch) for batch in batches])
