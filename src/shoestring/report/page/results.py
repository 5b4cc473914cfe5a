"""What came out: the final metrics, beside the answer that needs no model."""

from collections.abc import Iterable
from typing import Any

from shoestring.report.markup import EMPTY, Markup, element, join, table
from shoestring.report.metrics import BASELINE, ERROR, is_about_another, with_error
from shoestring.report.page.run import Run
from shoestring.report.values import dig, metric_text, numbers, pretty_json, words

_SMALLER_IS_BETTER = ("loss", "error", "perplexity", "mae", "mse", "rmse")


def results(run: Run) -> Markup:
    """Metrics by part of the data; test data decide where there are any."""
    parts = {part: metrics for part in ("validation", "test") if (metrics := _metrics(run, part))}
    if not parts:
        return EMPTY
    decisive = list(parts)[-1]
    baselines = {
        name.removeprefix(BASELINE): value for name, value in parts[decisive].items() if name.startswith(BASELINE)
    }
    columns = {**parts, f"most frequent class ({decisive})": baselines} if baselines else parts
    names = dict.fromkeys(name for metrics in parts.values() for name in metrics if not is_about_another(name))
    rows = [
        [words(name), *(with_error(column, name) for column in columns.values())]
        for name in names
        if not any(isinstance(metrics.get(name), dict | list) for metrics in parts.values())
    ]
    nested = [
        element("details", element("summary", f"{words(name)} ({part})"), element("pre", pretty_json(value)))
        for part, metrics in parts.items()
        for name, value in metrics.items()
        if isinstance(value, dict | list)
    ]
    return join(
        [
            element("h2", "Results"),
            *_against_majority(numbers(parts[decisive]), decisive),
            table(["metric", *columns], rows, numeric=range(1, len(columns) + 1)),
            nested,
        ]
    )


def _against_majority(metrics: dict[str, float], part: str) -> Iterable[Markup]:
    """One honest sentence for each metric that has a baseline."""
    for name, value in metrics.items():
        baseline = metrics.get(BASELINE + name)
        if baseline is None:
            continue
        smaller = any(word in name.split("_") for word in _SMALLER_IS_BETTER)
        ahead = baseline - value if smaller else value - baseline
        error = metrics.get(name + ERROR, 0.0)
        better = ahead > 2 * error
        claim = "better than" if better else "no better than" if ahead <= 0 else "within two standard errors of"
        text = (
            f"{words(name).capitalize()} on {part} data is {with_error(metrics, name)}: {claim} always answering the "
            f"most frequent class ({metric_text(baseline)})."
        )
        yield element("p", text, class_="verdict" if better else "verdict no")


def _metrics(run: Run, part: str) -> dict[str, Any]:
    """What state.json has, otherwise the last evaluation."""
    stated = dig(run.state, "metrics", part)
    evaluated = [event.get("metrics") for event in run.of("evaluation") if event.get("part") == part]
    return next((metrics for metrics in (stated, *reversed(evaluated)) if isinstance(metrics, dict)), {})
