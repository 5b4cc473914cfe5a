"""The evaluations that a library's trainer makes while it trains: events of the run, and its best weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from shoestring.integrations.session import TrainerSession
from shoestring.training.weights import load_best, save_best

_PREFIX = "eval_"
_MEASURED = ("_runtime", "_samples_per_second", "_steps_per_second", "_model_preparation_time")
"""The ends of the names of measured times; a trainer evaluates each of several datasets with such values."""


class Evaluations:
    """Records the evaluations of one trainer."""

    def __init__(self, trainer: Any, trainer_session: TrainerSession) -> None:
        self._trainer, self._trainer_session = trainer, trainer_session
        self._metrics: dict[str, Any] = {}
        self._best_metric: float | None = None

    def begin(self) -> None:
        """Begin with the restored state of the trainer."""
        self._best_metric = self._trainer.state.best_metric

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Add the metrics on one dataset; the evaluation may continue with another one."""
        self._metrics |= metrics

    def record(self) -> None:
        """Record the evaluation that has been made, if there is one, and save the weights if they are to be loaded at
        the end and are the best so far.

        Call it after the library has compared the metrics with the best ones, and before the update is saved.
        """
        if not self._metrics:
            return
        state, session = self._trainer.state, self._trainer_session.session
        seconds = sum(value for name, value in self._metrics.items() if name.endswith(_MEASURED[0]))
        metrics, self._metrics = _own_metrics(self._metrics), {}
        is_best = state.best_metric != self._best_metric
        self._best_metric = state.best_metric
        session.record.evaluated(
            "validation",
            state.global_step,
            metrics,
            epoch=math.ceil(state.epoch or 0.0),
            seconds=seconds,
            best=is_best,
        )
        self._trainer_session.reports.exclude(seconds)
        if is_best and self._trainer.args.load_best_model_at_end:
            save_best(session, metrics)

    def load_best(self) -> None:
        """Load the best weights into the model of a trainer that has ended, if its arguments request it."""
        best_update = self._trainer.state.best_global_step
        if self._trainer.args.load_best_model_at_end and best_update:
            load_best(self._trainer_session.session, best_update, "the model has")


def final_metrics(state: Any) -> dict[str, Any]:
    """Return the validation metrics of the best update in a trainer's log, or else of the last one evaluated."""
    evaluations = [entry for entry in state.log_history if any(name.startswith(_PREFIX) for name in entry)]
    update = state.best_global_step or max((entry["step"] for entry in evaluations), default=0)
    metrics: dict[str, Any] = {}
    for entry in evaluations:
        metrics |= _own_metrics(entry) if entry["step"] == update else {}
    return {"validation": metrics} if metrics else {}


def _own_metrics(logged: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that the trainer has logged without measured times, by their names without the prefix."""
    return {
        name.removeprefix(_PREFIX): value
        for name, value in logged.items()
        if name.startswith(_PREFIX) and not name.endswith(_MEASURED)
    }
