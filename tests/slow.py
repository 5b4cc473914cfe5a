"""The choice of the cases of a test that `make test` runs; the others are marked as slow, and run by `make soak`."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest


def slow_except(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """Return the cases of a parametrization by one name, those that are not `quick` with the mark `slow`.

    Cases with names are a mapping; its names become the ids, and `quick` are names.
    """
    named = cases if isinstance(cases, Mapping) else None
    cases = list(cases)
    unknown = [case for case in quick if case not in cases]
    assert not unknown, f"there are no cases {unknown}"
    marks = {True: [], False: pytest.mark.slow}
    if named is not None:
        return [pytest.param(value, id=name, marks=marks[name in quick]) for name, value in named.items()]
    return [pytest.param(case, marks=marks[case in quick]) for case in cases]
