"""The results section: the final metrics, beside the baseline that predicts the most frequent class."""

from collections.abc import Iterator
from typing import Any

from shoestring.answers import metrics as measured
from shoestring.answers.document import Code, Element, Metrics, Paragraph, Section
from shoestring.answers.metrics import BASELINE, ERROR, is_better_if_smaller, with_error
from shoestring.answers.report.run import Run
from shoestring.answers.values import lookup, metric_text, numbers, pretty_json, words


def results(run: Run) -> Iterator[Element]:
    """Yield the metrics by part of the data; baselines are those of the test data, or else of the validation data."""
    parts = {part: metrics for part in ("validation", "test") if (metrics := final_metrics(run, part))}
    if not parts:
        return
    final_part = list(parts)[-1]
    nested = [
        Code(pretty_json(value), f"{words(name)} ({part})")
        for part, metrics in parts.items()
        for name, value in metrics.items()
        if isinstance(value, dict | list) and name != "comparison"
    ]
    table = Metrics([measured.part(part, metrics, with_texts=True) for part, metrics in parts.items()])
    yield Section("Results", [*_against_majority(numbers(parts[final_part]), final_part), table, *nested])


def _against_majority(metrics: dict[str, float], part: str) -> Iterator[Paragraph]:
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
        yield Paragraph(text, "good" if better else "bad")


def final_metrics(run: Run, part: str) -> dict[str, Any]:
    """Return the metrics in state.json, or else those of the last evaluation."""
    stored = lookup(run.state, "metrics", part)
    evaluations = [event.get("metrics") for event in run.events_of("evaluation") if event.get("part") == part]
    return next((metrics for metrics in (stored, *reversed(evaluations)) if isinstance(metrics, dict)), {})
