"""Metrics that explain other metrics, by their names.

`majority_accuracy` is the accuracy of always answering the most frequent class;
`accuracy_error` is the standard error of the accuracy.
"""

from collections.abc import Mapping
from typing import Any

from shoestring.report.values import metric_text, number

BASELINE, ERROR = "majority_", "_error"


def is_about_another(name: str) -> bool:
    """Whether a metric only tells how to read another one."""
    return name.startswith(BASELINE) or name.endswith(ERROR)


def with_error(metrics: Mapping[str, Any], name: str) -> str:
    """A metric with its standard error where there is one: `0.541 ± 0.13`."""
    error = number(metrics.get(name + ERROR))
    return metric_text(metrics.get(name)) + (f" ± {error:.2g}" if error is not None else "")


def summary(metrics: Mapping[str, Any]) -> str:
    """The metrics that are numbers, each beside its error and its baseline, in one line."""
    told = []
    for name in metrics:
        if number(metrics[name]) is None or is_about_another(name):
            continue
        baseline = metrics.get(BASELINE + name)
        beside = "" if baseline is None else f" (most frequent class {metric_text(baseline)})"
        told.append(f"{name} {with_error(metrics, name)}{beside}")
    return " · ".join(told)
