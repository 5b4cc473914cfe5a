"""What proposals may cost to trace."""

from collections.abc import Mapping
from typing import Any

from shoestring.base.errors import TraceError, UsageError
from shoestring.base.settings import Settings
from shoestring.planning.candidates import Candidate, Candidates
from shoestring.planning.trace.record import Trace

BUDGET = 60_000
"""Trace events that proposals may cost in addition to a plan that fits: about five seconds."""

BUDGET_WITHOUT_A_PLAN = 600_000
"""The same budget when no settings fit and the proposals have to find a change that does: four traces of a model with 8
billion parameters."""


class Budget:
    """A budget for traces, counted in events, which are reproducible, unlike seconds."""

    def __init__(self, events: int, chosen: Candidate) -> None:
        self._remaining_events, self._chosen = events, chosen

    def allows_trace(self) -> bool:
        return self._remaining_events >= len(self._chosen.trace.events)

    def divide(self, parts: int) -> "list[Budget]":
        """Return budgets with equal parts of what remains."""
        return [Budget(self._remaining_events // parts, self._chosen) for _ in range(parts)]

    def spend(self, trace: Trace) -> None:
        if trace is not self._chosen.trace:  # settings that a trace does not depend on share one
            self._remaining_events -= len(trace.events)


def evaluate(candidates: Candidates, change: Mapping[str, Any], settings: Settings, budget: Budget) -> Candidate | str:
    """Return the candidate of the change, or the reason for not tracing it; "" if the change is not possible."""
    if not budget.allows_trace():
        return "not evaluated, because tracing it takes as long as the plan: plan with --set to evaluate it"
    try:
        candidate = candidates.evaluate_with_options(change, settings)
    except (UsageError, TraceError):
        return ""
    budget.spend(candidate.trace)
    return candidate
