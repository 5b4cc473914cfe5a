"""Computed values, compared with those that are committed."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.claims.compute import Values
from benchmarks.tables.markdown import read_result

TOLERANCES = {"bytes": 0.005, "seconds": 0.01, "count": 0.0, "text": 0.0}
"""The largest share of the committed value, by unit, by which a computed value may differ. Predictions are the same
each time with the same versions of the libraries, except for the seconds of encoding prompts and computing rewards, a
small part of chart's updates, which are measured. Other versions may allocate and launch slightly otherwise."""


def differences(computed: Mapping[str, Values]) -> list[str]:
    """Return a line for each value that differs by more than its tolerance, or that only one side has."""
    committed = read_result("claims")["cases"]
    return [line for name, values in computed.items() for line in _lines(name, values, committed.get(name, {}))]


def _lines(name: str, computed: Values, committed: Mapping[str, Any]) -> Iterator[str]:
    for unit, tolerance in TOLERANCES.items():
        new, old = computed.get(unit, {}), committed.get(unit, {})
        for value_name in dict.fromkeys([*old, *new]):
            before, now = old.get(value_name), new.get(value_name)
            if not _is_close(before, now, tolerance):
                yield f"{name}.{value_name}: {now} instead of {before} {unit}"


def _is_close(before: Any, now: Any, tolerance: float) -> bool:
    if isinstance(before, int | float) and isinstance(now, int | float):
        return abs(now - before) <= tolerance * abs(before)
    return bool(before == now)
