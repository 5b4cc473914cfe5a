"""Metrics that qualify other metrics, identified by their names.

`majority_accuracy` is the accuracy of always predicting the most frequent class;
`accuracy_error` is the standard error of the accuracy.
"""

from collections.abc import Mapping
from typing import Any

from shoestring.answers.document import Metric, MetricsPart
from shoestring.answers.values import metric_text
from shoestring.base.reading import number

BASELINE, ERROR = "majority_", "_error"
_SMALLER_IS_BETTER = ("loss", "error", "perplexity", "mae", "mse", "rmse")


def is_qualifier(name: str) -> bool:
    """Return whether a metric only qualifies another one, as its baseline or its error."""
    return name.startswith(BASELINE) or name.endswith(ERROR)


def is_better_if_smaller(name: str) -> bool:
    """Return whether a metric of this name measures an error."""
    return any(word in name.split("_") for word in _SMALLER_IS_BETTER)


def with_error(metrics: Mapping[str, Any], name: str) -> str:
    """Format a metric with its standard error, if it has one: `0.541 ± 0.13`."""
    error = number(metrics.get(name + ERROR))
    return metric_text(metrics.get(name)) + (f" ± {error:.2g}" if error is not None else "")


def comparison(metrics: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the metrics of what a run has compared, by name; empty if it has compared nothing."""
    rows = metrics.get("comparison")
    if not isinstance(rows, Mapping):
        return {}
    return {str(name): row for name, row in rows.items() if isinstance(row, Mapping)}


def part(name: str, metrics: Mapping[str, Any], *, limit: int | None = None, with_texts: bool = False) -> MetricsPart:
    """Return the metrics of one part of the data that are numbers, or texts, and what the run has compared on it."""
    compared = [(title, _metrics(row, with_texts)) for title, row in comparison(metrics).items()]
    return MetricsPart(name, _metrics(metrics, with_texts)[:limit], compared)


def _metrics(metrics: Mapping[str, Any], with_texts: bool) -> list[Metric]:
    return [
        Metric(
            name, with_error(metrics, name), metric_text(metrics[BASELINE + name]) if BASELINE + name in metrics else ""
        )
        for name, value in metrics.items()
        if not is_qualifier(name) and (number(value) is not None or (with_texts and not isinstance(value, dict | list)))
    ]
