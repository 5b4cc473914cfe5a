"""The origin of saved weights, as the files of their run record it: their update, the run's progress, their metrics."""

from collections.abc import Mapping
from typing import Any

from shoestring.base.units import count_text
from shoestring.runs.saved_model import Weights
from shoestring.training.monitor.events import current, read


def describe_origin(weights: Weights, update: int | None) -> str:
    """Return which weights they are, and how far their run was: "the weights of update 12, ...; the run is ..."."""
    name = "the weights" if update is None else f"the weights of update {count_text(update)}"
    run = weights.run
    if run is None:
        return f"{name} in {weights.path.name}, which belong to no run"
    kind = "the best by the metric of the validation data" if weights.path == run.best else weights.path.name
    state = run.state()
    if state is None:
        return f"{name} ({kind}); the progress of the run is not known"
    progress = f"update {count_text(state.update)} of {count_text(state.total_updates)}"
    if state.status == "finished":
        return f"{name} ({kind}); the run is finished, at {progress}"
    return f"{name} ({kind}); the run is not finished: it is {state.status or 'interrupted'} at {progress}"


def read_metrics(weights: Weights, update: int | None) -> Mapping[str, Mapping[str, Any]]:
    """Return the metrics of the weights by part of the data, as far as the run has computed them."""
    run = weights.run
    if run is None:
        return {}
    state = run.state()
    if state and state.status == "finished" and weights.path == run.best:
        return state.metrics  # the test data are evaluated only with these weights
    return {
        str(event["part"]): event["metrics"]
        for event in current(read(run.events_file))
        if event["event"] == "evaluation" and event.get("update") == update and event.get("part") != "test"
    }
