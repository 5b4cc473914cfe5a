"""The results section: the final metrics, beside the baseline that predicts the most frequent class."""

from collections.abc import Iterable, Mapping
from typing import Any

from shoestring.answers.metrics import BASELINE, ERROR, comparison, is_better_if_smaller, is_qualifier, with_error
from shoestring.answers.renderers.markup import EMPTY, Markup, element, join, table
from shoestring.answers.report.run import Run
from shoestring.answers.values import lookup, metric_text, numbers, pretty_json, words


def results(run: Run) -> Markup:
    """Render the metrics by part of the data; baselines are those of the test data, or else of the validation data."""
    parts = {part: metrics for part in ("validation", "test") if (metrics := final_metrics(run, part))}
    if not parts:
        return EMPTY
    final_part = list(parts)[-1]
    baselines = {
        name.removeprefix(BASELINE): value for name, value in parts[final_part].items() if name.startswith(BASELINE)
    }
    columns = {**parts, f"most frequent class ({final_part})": baselines} if baselines else parts
    names = dict.fromkeys(name for metrics in parts.values() for name in metrics if not is_qualifier(name))
    rows = [
        [words(name), *(with_error(column, name) for column in columns.values())]
        for name in names
        if not any(isinstance(metrics.get(name), dict | list) for metrics in parts.values())
    ]
    compared = [
        join([element("h3", f"Compared on {part} data"), _comparison_table(comparison(metrics))])
        for part, metrics in parts.items()
        if comparison(metrics)
    ]
    nested = [
        element("details", element("summary", f"{words(name)} ({part})"), element("pre", pretty_json(value)))
        for part, metrics in parts.items()
        for name, value in metrics.items()
        if isinstance(value, dict | list) and name != "comparison"
    ]
    return join(
        [
            element("h2", "Results"),
            *_against_majority(numbers(parts[final_part]), final_part),
            table(["metric", *columns], rows, numeric=range(1, len(columns) + 1)),
            compared,
            nested,
        ]
    )


def _comparison_table(rows: Mapping[str, Mapping[str, Any]]) -> Markup:
    """Render a row for each of what was compared, and a column for each of its metrics."""
    names = [name for name in dict.fromkeys(name for row in rows.values() for name in row) if not is_qualifier(name)]
    content = [[words(title), *(with_error(row, name) for name in names)] for title, row in rows.items()]
    return table(["", *map(words, names)], content, numeric=range(1, len(names) + 1))


def _against_majority(metrics: dict[str, float], part: str) -> Iterable[Markup]:
    """Yield a sentence for each metric that has a baseline, taking its standard error into account."""
    for name, value in metrics.items():
        baseline = metrics.get(BASELINE + name)
        if baseline is None:
            continue
        improvement = baseline - value if is_better_if_smaller(name) else value - baseline
        error = metrics.get(name + ERROR, 0.0)
        better = improvement > 2 * error
        claim = "better than" if better else "no better than" if improvement <= 0 else "within two standard errors of"
        text = (
            f"{words(name).capitalize()} on {part} data is {with_error(metrics, name)}: {claim} always predicting the "
            f"most frequent class ({metric_text(baseline)})."
        )
        yield element("p", text, class_="verdict" if better else "verdict no")


def final_metrics(run: Run, part: str) -> dict[str, Any]:
    """Return the metrics in state.json, or else those of the last evaluation."""
    stored = lookup(run.state, "metrics", part)
    evaluations = [event.get("metrics") for event in run.events_of("evaluation") if event.get("part") == part]
    return next((metrics for metrics in (stored, *reversed(evaluations)) if isinstance(metrics, dict)), {})
