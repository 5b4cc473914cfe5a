"""Metrics that qualify other metrics, identified by their names.

`majority_accuracy` is the accuracy of always predicting the most frequent class;
`accuracy_error` is the standard error of the accuracy.
"""

from collections.abc import Mapping
from typing import Any

from shoestring.answers.values import metric_text
from shoestring.base.reading import number
from shoestring.base.streams import one_line

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


def summary(metrics: Mapping[str, Any]) -> str:
    """Format the numeric metrics in one line, each with its error and its baseline."""
    texts = []
    for name in metrics:
        if number(metrics[name]) is None or is_qualifier(name):
            continue
        baseline = metrics.get(BASELINE + name)
        comparison = "" if baseline is None else f" (most frequent class {metric_text(baseline)})"
        texts.append(f"{one_line(name)} {with_error(metrics, name)}{comparison}")
    return " · ".join(texts)
