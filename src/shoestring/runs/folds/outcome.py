"""What a cross-validation has come to: the state of each fold, and the metrics of all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, Literal

from shoestring.base.display import Displayed
from shoestring.base.reading import number
from shoestring.training.session.outcome import Outcome


@dataclass(frozen=True, kw_only=True)
class MetricOfFolds:
    """A metric of the folds that are finished."""

    part: str
    """The part of the data: validation or test."""
    name: str
    values: tuple[float, ...]
    """Its value in each fold."""
    mean: float
    deviation: float | None
    """The standard deviation between folds, with n - 1 in the denominator; None for a single fold."""


@dataclass(frozen=True, kw_only=True)
class CrossValidation(Displayed):
    """The outcome of a session that trained the folds of a cross-validation."""

    status: Literal["finished", "paused"]
    """Whether all folds are finished and predicted, or the same call continues."""
    reason: str
    """Why the session has ended."""
    recipe: str
    """The name or the path of the recipe."""
    run: str
    """The folder with the runs of the folds."""
    folds: tuple[Outcome, ...]
    """The outcome of each fold, of those that have not begun as well."""
    metrics: tuple[MetricOfFolds, ...]
    """The metrics of the folds that are finished: of each part of the data, those that all of them have."""
    out_of_fold: str | None = None
    """The file with a prediction for each sample, by the model that was not trained on it."""
    notes: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether all folds are finished."""
        return self.status == "finished"


def metrics_of_folds(metrics: Sequence[Mapping[str, Any]]) -> tuple[MetricOfFolds, ...]:
    """Return the numbers among the `metrics` of folds by part of the data which all of these folds have."""
    result: list[MetricOfFolds] = []
    for part in ("validation", "test"):
        of_part = [fold.get(part) or {} for fold in metrics]
        for name in of_part[0] if of_part else ():
            values = [number(fold.get(name)) for fold in of_part]
            finite = [value for value in values if value is not None]
            if len(finite) == len(values):
                deviation = stdev(finite) if len(finite) > 1 else None
                result.append(
                    MetricOfFolds(part=part, name=name, values=tuple(finite), mean=mean(finite), deviation=deviation)
                )
    return tuple(result)
